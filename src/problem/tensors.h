// The table of the tensors of a tilewise_problem: the name of each and whether an operation reads
// or writes it.
#pragma once

#include <span>

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

// A counter is read and added to: it is no result.
enum class Role { kUnused, kInput, kOutput, kCounter };

inline bool is_written(Role role) { return role == Role::kOutput || role == Role::kCounter; }

struct NamedTensor {
  const char* name;
  tilewise_tensor tilewise_problem::*member;
  Role forward;
  Role backward;

  Role role(Operation operation) const {
    return operation == Operation::kForward ? forward : backward;
  }
};

inline constexpr NamedTensor kTensors[] = {
    {"q", &tilewise_problem::q, Role::kInput, Role::kInput},
    {"k", &tilewise_problem::k, Role::kInput, Role::kInput},
    {"v", &tilewise_problem::v, Role::kInput, Role::kInput},
    {"out", &tilewise_problem::out, Role::kOutput, Role::kInput},
    {"lse", &tilewise_problem::lse, Role::kOutput, Role::kInput},
    {"cu_seqlens_q", &tilewise_problem::cu_seqlens_q, Role::kInput, Role::kInput},
    {"cu_seqlens_k", &tilewise_problem::cu_seqlens_k, Role::kInput, Role::kInput},
    {"seqused_q", &tilewise_problem::seqused_q, Role::kInput, Role::kInput},
    {"seqused_k", &tilewise_problem::seqused_k, Role::kInput, Role::kInput},
    {"slices", &tilewise_problem::slices, Role::kInput, Role::kInput},
    {"parts", &tilewise_problem::parts, Role::kInput, Role::kInput},
    {"mask", &tilewise_problem::mask, Role::kInput, Role::kInput},
    {"bias", &tilewise_problem::bias, Role::kInput, Role::kInput},
    {"alibi_slopes", &tilewise_problem::alibi_slopes, Role::kInput, Role::kInput},
    {"sink", &tilewise_problem::sink, Role::kInput, Role::kInput},
    {"phi", &tilewise_problem::phi, Role::kInput, Role::kUnused},
    {"phi_fallbacks", &tilewise_problem::phi_fallbacks, Role::kCounter, Role::kUnused},
    {"dout", &tilewise_problem::dout, Role::kUnused, Role::kInput},
    {"dlse", &tilewise_problem::dlse, Role::kUnused, Role::kInput},
    {"dq", &tilewise_problem::dq, Role::kUnused, Role::kOutput},
    {"dk", &tilewise_problem::dk, Role::kUnused, Role::kOutput},
    {"dv", &tilewise_problem::dv, Role::kUnused, Role::kOutput},
    {"dbias", &tilewise_problem::dbias, Role::kUnused, Role::kOutput},
    {"dsink", &tilewise_problem::dsink, Role::kUnused, Role::kOutput},
    {"dalibi_slopes", &tilewise_problem::dalibi_slopes, Role::kUnused, Role::kOutput},
    {"page_table", &tilewise_problem::page_table, Role::kInput, Role::kInput},
    {"q_descale", &tilewise_problem::q_descale, Role::kInput, Role::kInput},
    {"k_descale", &tilewise_problem::k_descale, Role::kInput, Role::kInput},
    {"v_descale", &tilewise_problem::v_descale, Role::kInput, Role::kInput},
};

inline bool present(const tilewise_tensor& tensor) { return tensor.rank != 0; }
bool has_elements(const tilewise_tensor& tensor);

// A tensor of a call that has elements, and what the call does with it.
struct Operand {
  const char* name;
  const tilewise_tensor* tensor;
  Role role;
};

// Checks that the data of all operands are set and aligned, and that outputs share no memory with
// inputs or with each other.
Status check_operands(std::span<const Operand> operands);

}  // namespace tilewise::problem
