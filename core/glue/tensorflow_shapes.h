/// Shapes of results, as far as they are known when a graph is built.
#pragma once

#include "glue/tensorflow_api.h"

namespace farandole::tf {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

/// Each output has the shape of its input.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
/// Each output is its input with another number of rows.
void all_other_rows(TF_ShapeInferenceContext* context, TF_Status* status);
/// Of an alltoall: rows, and how many came from each member.
void rows_and_counts(TF_ShapeInferenceContext* context, TF_Status* status);
void scalar(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace farandole::tf
