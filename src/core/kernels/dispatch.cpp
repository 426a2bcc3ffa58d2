// Selects the kernels for this CPU.
#include <cstdlib>
#include <stdexcept>
#include "kernels/kernels.hpp"

namespace dslide {
namespace reference { const Kernels& table(); }
#if defined(__x86_64__)
namespace v2 { const Kernels& table(); }
namespace v3 { const Kernels& table(); }
namespace v4 { const Kernels& table(); }
namespace v4bf16 { void register_bf16_pairs(Kernels& table); }
#else
namespace native_baseline { const Kernels& table(); }
#endif

namespace {
Kernels named(const char* name, const Kernels& table) {
  Kernels k = table;
  k.name = name;
  return k;
}

// Worst to best; only those that the CPU and the operating system (which saves the registers) support.
const std::vector<Kernels>& sets() {
  static const std::vector<Kernels> all = [] {
    std::vector<Kernels> s{reference::table()};
#if defined(__x86_64__)
    __builtin_cpu_init();
    s.push_back(named("v2", v2::table()));
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2")) {
      s.push_back(named("v3", v3::table()));
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vl")) {
        s.push_back(named("v4", v4::table()));
        if (__builtin_cpu_supports("avx512bf16")) {
          s.push_back(named("v4bf16", v4::table()));
          v4bf16::register_bf16_pairs(s.back());
        }
      }
    }
#elif defined(__aarch64__)
    s.push_back(named("neon", native_baseline::table()));
#else
    s.push_back(named("baseline", native_baseline::table()));
#endif
    return s;
  }();
  return all;
}
}  // namespace

const Kernels& kernels(const std::string& name) {
  std::string known;
  for (const Kernels& k : sets()) {
    if (name == k.name) return k;
    known += (known.empty() ? "" : ", ") + std::string(k.name);
  }
  throw std::invalid_argument("instruction-set level '" + name + "' is not one this machine runs: " + known);
}

const Kernels& kernels() {
  static const char* const forced = std::getenv("DSLIDE_ISA");
  static const Kernels& chosen = forced && *forced ? kernels(forced) : sets().back();
  return chosen;
}

std::vector<std::string> kernel_levels() {
  std::vector<std::string> names;
  for (const Kernels& k : sets()) names.emplace_back(k.name);
  return names;
}
}  // namespace dslide
