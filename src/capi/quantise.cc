// The C interface of quantisation.
#include <tilewise/tilewise_quantise.h>

#include <cstring>

#include "capi/structs.h"
#include "plan/quantise.h"

void tilewise_quantisation_init(tilewise_quantisation* quantisation) {
  if (quantisation == nullptr) return;
  std::memset(quantisation, 0, sizeof(*quantisation));
  quantisation->struct_size = sizeof(*quantisation);
}

tilewise_status tilewise_quantise(const tilewise_quantisation* quantisation,
                                  const tilewise_executor* executor) {
  if (const tilewise_status status = tilewise::capi::check_struct("quantisation", quantisation);
      status != TILEWISE_OK)
    return status;
  return tilewise::plan::quantise(*quantisation, executor);
}
