"""Slow, obvious versions of the hash functions, tables and queries in src/core/hashing."""

from __future__ import annotations

from collections import Counter

import numpy as np

MASK = 2**64 - 1


def mix(*words: int) -> int:
    """The core's mix(a), mix(a, b), mix(a, b, c)."""
    x = words[0]
    for i in range(len(words)):
        x = (x + 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        x ^= x >> 31
        if i + 1 < len(words):
            x ^= words[i + 1]
    return x


def mix_array(x: np.ndarray) -> np.ndarray:
    """mix(a) of every element of an array of uint64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def below(random: int, n: int) -> int:
    """The core's below(random, n)."""
    return ((random >> 32) * n) >> 32


def join(codes: list[int], bits: int, table_bits: int) -> int:
    """The bucket number of a table's codes."""
    if len(codes) * bits <= table_bits:
        return sum(code << (bits * j) for j, code in enumerate(codes))
    per_word = 64 // bits
    words = [
        sum(code << (bits * j) for j, code in enumerate(codes[i : i + per_word]))
        for i in range(0, len(codes), per_word)
    ]
    hashed = 0
    for word in words:
        hashed = mix(hashed, word)
    return hashed >> (64 - table_bits)


def join_all(codes: list[int], k: int, bits: int, table_bits: int) -> list[int]:
    return [join(codes[i : i + k], bits, table_bits) for i in range(0, len(codes), k)]


def densified(codes: list[int | None], seed: int) -> list[int]:
    """Codes with the empty ones (None) borrowed from the first filled one of their probing sequence."""

    def borrowed(bin: int) -> int:
        for attempt in range(128):
            code = codes[below(mix(seed, bin, attempt), len(codes))]
            if code is not None:
                return code
        return 0

    if all(code is None for code in codes):
        return [0] * len(codes)
    return [borrowed(bin) if code is None else code for bin, code in enumerate(codes)]


def simhash(x: np.ndarray, k: int, tables: int, table_bits: int, seed: int) -> list[int]:
    bits = []
    for p in range(k * tables):
        total = np.float32(0)
        for group in range(0, len(x), 4):
            group_total = np.float32(0)
            for d in range(group, min(group + 4, len(x))):
                plus = mix(seed, d, p // 64) >> (p % 64) & 1
                group_total = np.float32(group_total + (x[d] if plus else -x[d]))
            total = np.float32(total + group_total)
        bits.append(int(total > 0))
    return join_all(bits, k, 1, table_bits)


def wta_coordinates(dimension: int, bins: int, seed: int) -> list[list[int]]:
    """The coordinates of each bin: pieces of random permutations."""
    size = min(8, dimension)
    pieces: list[list[int]] = []
    permutation = 0
    while len(pieces) < bins:
        order = list(range(dimension))
        for i in range(dimension // size * size):
            j = i + below(mix(mix(seed, 0), permutation, i), dimension - i)
            order[i], order[j] = order[j], order[i]
        pieces += [order[i : i + size] for i in range(0, dimension - size + 1, size)]
        permutation += 1
    return pieces[:bins]


def wta(x: np.ndarray, k: int, tables: int, table_bits: int, seed: int) -> list[int]:
    codes = [int(np.argmax(x[bin])) for bin in wta_coordinates(len(x), k * tables, seed)]
    return join_all(codes, k, 3, table_bits)


def dwta(x: np.ndarray, k: int, tables: int, table_bits: int, seed: int) -> list[int]:
    codes: list[int | None] = []
    for bin in wta_coordinates(len(x), k * tables, seed):
        present = [(position, x[d]) for position, d in enumerate(bin) if x[d] != 0]
        codes.append(max(present, key=lambda pair: (pair[1], -pair[0]))[0] if present else None)
    return join_all(densified(codes, mix(seed, 1)), k, 3, table_bits)


def minhash(x: np.ndarray, k: int, tables: int, table_bits: int, seed: int) -> list[int]:
    top = max(1, -(-len(x) // 8))
    members = sorted((d for d in range(len(x)) if x[d] > 0), key=lambda d: (-x[d], d))[:top]
    codes: list[int | None] = [None] * (k * tables)
    for d in members:
        hashed = mix(seed, 0, d)
        bin, value = below(hashed, k * tables), (hashed & 0xFFFFFFFF) >> 1
        codes[bin] = value if codes[bin] is None else min(codes[bin], value)
    return join_all(densified(codes, mix(seed, 1)), k, 31, table_bits)


FAMILIES = {"simhash": simhash, "wta": wta, "dwta": dwta, "minhash": minhash}


def buckets(
    codes: dict[int, np.ndarray],
    neurons: int,
    tables: int,
    table_bits: int,
    bound: int,
    policy: str,
    seed: int,
) -> list[list[list[int]]]:
    """For each table and bucket the neurons it keeps, ascending; a neuron without codes is in none."""
    result = []
    for t in range(tables):
        first = below(mix(seed, t), neurons)
        table: list[list[int]] = [[] for _ in range(2**table_bits)]
        for neuron in [*range(first, neurons), *range(first)]:
            if neuron in codes:
                table[codes[neuron][t]].append(neuron)
        for b, bucket in enumerate(table):
            if bound and policy == "fifo":
                bucket = bucket[-bound:]
            elif bound:
                bucket = sorted(bucket, key=lambda i: (mix(seed, t, i) >> 32, i))[:bound]
            table[b] = sorted(bucket)
        result.append(table)
    return result


def vanilla(row_buckets: list[list[int]], want: int | None, seed: int, step: int, row: int) -> list[int]:
    key = mix(seed, step, row)
    order = list(range(len(row_buckets)))
    found: list[int] = []
    for i in range(len(order)):
        j = i + below(mix(key, 0, i), len(order) - i)
        order[i], order[j] = order[j], order[i]
        bucket = row_buckets[order[i]]
        begin = below(mix(key, 1, i), len(bucket))
        found += [neuron for neuron in bucket[begin:] + bucket[:begin] if neuron not in found]
    return sorted(found[:want])


def counted(
    row_buckets: list[list[int]], at_least: int, want: int | None, seed: int, step: int, row: int
) -> list[tuple[int, int]]:
    """(neuron, number of tables it was found in), ascending."""
    key = mix(seed, step, row)
    counts = Counter(neuron for bucket in row_buckets for neuron in bucket)
    found = [neuron for neuron in counts if counts[neuron] >= at_least]
    found.sort(key=lambda neuron: (-counts[neuron], mix(key, neuron) >> 32, neuron))
    return sorted((neuron, counts[neuron]) for neuron in found[:want])
