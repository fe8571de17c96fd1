// Makes random inputs of a given shape: normal numbers, or data of another kind.
#pragma once

#include "inputs.h"
#include "problem/kernel.h"
#include "verify/data.h"

namespace tilewise::cli {

void add_shape_flag(Flags& flags);      // --shape B,Sq,Sk,H,Hk,D[,Dv]
void add_data_flag(Flags& flags);       // --data NAME
void add_data_list_flag(Flags& flags);  // --data NAME,..., or all
std::string data_help();                // a line for each kind of data

// The numbers of --shape; Dv is D where it is left out. Throws UsageError for invalid sizes.
struct Shape {
  std::int64_t batch, q_len, k_len, heads, kv_heads, head_dim, value_dim;
};
Shape shape_flag(const Flags& flags);

// Returns the data that --data names, each once; {normal} without the flag. "all" leaves out what
// needs a tensor that `request` lacks; a name that needs one throws UsageError, as bad names do.
std::vector<verify::Data> data_flag(const Flags& flags, const tilewise_problem& request);

// Makes the inputs of --shape from normal random numbers: dout too if `backward`, and with
// --random-bias a bias (Sq, Sk).
Inputs make_inputs(const Flags& flags, bool backward);

// Returns the inputs with each of the data in place of normal random numbers. None shares memory
// with another: in turns with others, it would find its tensors in the cache, and they would not.
std::vector<Inputs> with_data(const Inputs& normal, const std::vector<verify::Data>& data,
                              const tilewise_executor& executor);

}  // namespace tilewise::cli
