// phi, the anchor of FlashDecoding++ (docs/decoding.md), on the command line.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "flags.h"
#include "inputs.h"

namespace tilewise::cli {

void add_phi_flag(Flags& flags);
void add_phi_proposal_flag(Flags& flags);

// Sets phi, and a counter that is 0, from --phi. Throws UsageError.
void read_phi(const Flags& flags, Inputs& inputs);

// Returns what --phi and --propose-phi have to say after a forward pass, as an object: "fallbacks",
// how often phi did not serve; "proposal", a phi for each head, with "serves", whether it serves
// all of its rows. Empty without these flags.
nlohmann::json phi_report(const Flags& flags, const Inputs& inputs);

void print_phi_report(std::FILE* to, const nlohmann::json& report);

}  // namespace tilewise::cli
