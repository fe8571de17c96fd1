// Sets of rows of a token axis, as sorted ranges that neither overlap nor touch.
#pragma once

#include <vector>

#include "math/mask_rule.h"

namespace tilewise::distributed::magi {

using Range = math::KeyRange;  // [begin, end)
using Ranges = std::vector<Range>;

// Sorts any ranges, drops the empty ones and joins those that overlap or touch.
void normalise(Ranges& ranges);

// The functions below take and return sorted ranges, as normalise() leaves them.

std::int64_t row_count(const Ranges& ranges);

// Returns the rows of both sets, in time linear in their sizes.
Ranges intersection(const Ranges& a, const Ranges& b);

// Returns the rows of a that are not in b.
Ranges difference(const Ranges& a, const Ranges& b);

// Returns the index of the first range that ends after `row`: the one with the row, if any is.
std::size_t first_ending_after(const Ranges& ranges, std::int64_t row);

// Appends [begin, end), whose begin is not before the end of the last range.
void append(Ranges& ranges, std::int64_t begin, std::int64_t end);

// Returns the rows [begin, end) of the set, counted from its first row, as rows of the axis.
Ranges rows_from_to(const Ranges& ranges, std::int64_t begin, std::int64_t end);

// Returns for each range the number of rows of the set before it: local row = before + row - begin.
std::vector<std::int64_t> rows_before(const Ranges& ranges);

}  // namespace tilewise::distributed::magi
