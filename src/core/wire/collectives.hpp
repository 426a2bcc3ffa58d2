// What the ranks of a network make of each other's messages in a step, all of them in one call. Messages are bytes as
// they came: not aligned, and of sizes that the caller has checked.
#pragma once
#include <cstdint>
#include <span>
#include <vector>
#include "data/csr.hpp"

namespace dslide {
using Bytes = std::span<const uint8_t>;

// Rankings of lists of at most `want` hits a row as a table (rows x want); 0 stands for no hit. Throws
// std::invalid_argument if a row has more hits.
void ranking_table(const Csr& hits, const uint32_t* ranking, size_t want, uint32_t* table);

// Of a rank's hits those whose ranking is among the `want` best of the row in the tables of all ranks: their places in
// the lists, ascending.
std::vector<size_t> best_hits(const Csr& hits, const uint32_t* ranking, std::span<const Bytes> tables, size_t want);

// The log of the sum of exponentials over all ranks, (rows). A message has, for each row, a rank's reference, and then
// its sums of exp(logit - reference); a rank without active neurons has reference -infinity and sum 0.
void log_normaliser(std::span<const Bytes> messages, size_t rows, float* result);
}  // namespace dslide
