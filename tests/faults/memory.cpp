// A library to preload, which makes the n-th allocation of the core fail, in this process:
//
//   memory_arm(n)     from now on count allocations that code of _core asks for; the n-th (from 1; 0: none) fails
//   memory_disarm()   how many there were
//
// All of the core's memory comes from `operator new`, as does that of the vectors and strings whose code it contains.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <new>

namespace {
std::atomic<long> counted, at;
std::atomic<bool> armed;
uintptr_t begin, end;  // of the core's code

int find_core(dl_phdr_info* library, size_t, void*) {
  if (!library->dlpi_name || !strstr(library->dlpi_name, "/_core.")) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = library->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
    begin = library->dlpi_addr + part.p_vaddr;
    end = begin + part.p_memsz;
  }
  return 1;
}

void* allocated(size_t size, size_t alignment, void* caller) {
  const uintptr_t from = reinterpret_cast<uintptr_t>(caller);
  if (armed && begin <= from && from < end && ++counted == at) throw std::bad_alloc();
  if (!size) size = 1;
  void* const p = alignment ? aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment) : malloc(size);
  if (!p) throw std::bad_alloc();
  return p;
}
}  // namespace

extern "C" int memory_arm(long n) {
  begin = end = 0;
  dl_iterate_phdr(find_core, nullptr);
  counted = 0;
  at = n;
  armed = true;
  return end > begin;
}
extern "C" long memory_disarm() {
  armed = false;
  return counted;
}

#define CALLER __builtin_return_address(0)
void* operator new(size_t size) { return allocated(size, 0, CALLER); }
void* operator new[](size_t size) { return allocated(size, 0, CALLER); }
void* operator new(size_t size, std::align_val_t a) { return allocated(size, size_t(a), CALLER); }
void* operator new[](size_t size, std::align_val_t a) { return allocated(size, size_t(a), CALLER); }
