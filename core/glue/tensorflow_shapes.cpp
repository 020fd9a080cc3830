#include "glue/tensorflow_shapes.h"

#include "glue/tensorflow_values.h"

namespace farandole::tf {

namespace {

bool fine(const TF_Status* status) { return api().TF_GetCode(status) == kOk; }

/// The number of rows is known when the op runs; the other dimensions stay.
void other_rows(TF_ShapeInferenceContext* context, int i, TF_Status* status) {
  const ShapeHandle shape(api().TF_NewShapeHandle());
  const ShapeHandle result(api().TF_NewShapeHandle());
  api().TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
  if (fine(status) && api().TF_ShapeInferenceContextRankKnown(context, shape.get()) != 0) {
    api().TF_ShapeInferenceContextWithRankAtLeast(context, shape.get(), 1, shape.get(), status);
    if (!fine(status)) return;
    const auto dims = api().TF_ShapeInferenceContextRank(context, shape.get());
    const ShapeHandle rows(
        api().TF_ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1)));
    api().TF_ShapeInferenceContextSubshape(context, shape.get(), 1, dims, shape.get(), status);
    if (!fine(status)) return;
    api().TF_ShapeInferenceContextConcatenateShapes(context, rows.get(), shape.get(), result.get(),
                                                    status);
  }
  if (fine(status)) api().TF_ShapeInferenceContextSetOutput(context, i, result.get(), status);
}

}  // namespace

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle shape(api().TF_NewShapeHandle());
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && fine(status); ++i) {
    api().TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (fine(status)) api().TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

void all_other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && fine(status); ++i) other_rows(context, i, status);
}

void rows_and_counts(TF_ShapeInferenceContext* context, TF_Status* status) {
  other_rows(context, 0, status);
  if (!fine(status)) return;
  const ShapeHandle counts(
      api().TF_ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1)));
  api().TF_ShapeInferenceContextSetOutput(context, 1, counts.get(), status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle shape(api().TF_ShapeInferenceContextScalar(context));
  api().TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

}  // namespace farandole::tf
