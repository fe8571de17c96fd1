// Describes the machine that this program runs on, as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "plan/host.h"

namespace tilewise::cli {

inline nlohmann::json machine_json(const plan::Host& host) {
  return {{"cpu", host.cpu},       {"cpus", host.cpus},         {"features", host.features},
          {"target", host.target}, {"compiler", host.compiler}, {"system", host.system}};
}

}  // namespace tilewise::cli
