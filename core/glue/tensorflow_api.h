/// The part of TensorFlow's C API that the glue uses, found in the running process: nothing is
/// included and nothing is linked, so one build serves every release that exports these names.
///
/// Source: the public headers tensorflow/c/{ops,kernels,tf_tensor,tf_status}.h. All structs are
/// opaque but two, which are passed by value or filled by us.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole::tf {

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;
struct TF_StringView {
  const char* data;
  std::size_t len;
};

// Numbers of enumerations of the C API.
inline constexpr int kOk = 0;
inline constexpr int kUnknown = 2;
inline constexpr int kInvalidArgument = 3;
inline constexpr int kFailedPrecondition = 9;
inline constexpr int kAborted = 10;

// clang-format off
#define FARANDOLE_TF_FUNCTIONS(X)                                                                      \
  X(TF_Status*, TF_NewStatus, (void))                                                              \
  X(void, TF_DeleteStatus, (TF_Status*))                                                           \
  X(void, TF_SetStatus, (TF_Status*, int, const char*))                                            \
  X(int, TF_GetCode, (const TF_Status*))                                                           \
  X(const char*, TF_Message, (const TF_Status*))                                                   \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char*))                             \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                   \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                  \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                 \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                    \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                                         \
    (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))                    \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                          \
  X(TF_ShapeHandle*, TF_NewShapeHandle, (void))                                                    \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle*))                                                 \
  X(std::int64_t, TF_ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                  \
  X(void, TF_ShapeInferenceContextGetInput,                                                        \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                 \
  X(void, TF_ShapeInferenceContextSetOutput,                                                       \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                 \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                  \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextVectorFromSize,                                       \
    (TF_ShapeInferenceContext*, std::size_t))                                                      \
  X(std::int64_t, TF_ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*))      \
  X(int, TF_ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))          \
  X(void, TF_ShapeInferenceContextWithRankAtLeast,                                                 \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t, TF_ShapeHandle*, TF_Status*))       \
  X(void, TF_ShapeInferenceContextSubshape,                                                        \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t, std::int64_t, TF_ShapeHandle*,      \
     TF_Status*))                                                                                  \
  X(void, TF_ShapeInferenceContextConcatenateShapes,                                               \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))    \
  X(TF_KernelBuilder*, TF_NewKernelBuilder,                                                        \
    (const char*, const char*, void* (*)(TF_OpKernelConstruction*),                                \
     void (*)(void*, TF_OpKernelContext*), void (*)(void*)))                                       \
  X(TF_KernelBuilder*, TF_NewAsyncKernelBuilder,                                                   \
    (const char*, const char*, void* (*)(TF_OpKernelConstruction*),                                \
     void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*)(void*)))        \
  X(void, TF_KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))                           \
  X(void, TF_RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                  \
  X(void, TF_RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                        \
  X(int, TF_NumInputs, (TF_OpKernelContext*))                                                      \
  X(void, TF_GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                        \
  X(TF_Tensor*, TF_ForwardInputOrAllocateOutput,                                                   \
    (TF_OpKernelContext*, const int*, int, int, const std::int64_t*, int, int*, TF_Status*))       \
  X(TF_Tensor*, TF_AllocateOutput,                                                                 \
    (TF_OpKernelContext*, int, int, const std::int64_t*, int, std::size_t, TF_Status*))            \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                           \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                 \
  X(TF_StringView, TF_OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                    \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                     \
    (TF_OpKernelConstruction*, const char*, std::int32_t*, std::int32_t*, TF_Status*))             \
  X(void, TF_OpKernelConstruction_GetAttrString,                                                   \
    (TF_OpKernelConstruction*, const char*, char*, std::size_t, TF_Status*))                       \
  X(void, TF_OpKernelConstruction_GetAttrInt64,                                                    \
    (TF_OpKernelConstruction*, const char*, std::int64_t*, TF_Status*))                            \
  X(void, TF_OpKernelConstruction_GetAttrFloat,                                                    \
    (TF_OpKernelConstruction*, const char*, float*, TF_Status*))                                   \
  X(void, TF_OpKernelConstruction_GetAttrBool,                                                     \
    (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))                           \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                                           \
  X(void*, TF_TensorData, (const TF_Tensor*))                                                      \
  X(std::size_t, TF_TensorByteSize, (const TF_Tensor*))                                            \
  X(int, TF_TensorType, (const TF_Tensor*))                                                        \
  X(int, TF_NumDims, (const TF_Tensor*))                                                           \
  X(std::int64_t, TF_Dim, (const TF_Tensor*, int))
// clang-format on

/// The functions, all found or not at all.
struct Api {
#define FARANDOLE_TF_MEMBER(result, name, arguments) result(*name) arguments = nullptr;
  FARANDOLE_TF_FUNCTIONS(FARANDOLE_TF_MEMBER)
#undef FARANDOLE_TF_MEMBER
  /// The first name that this TensorFlow lacks, or why there is none; empty: complete.
  const char* missing = "";
};

/// Of the TensorFlow that this process has loaded already. Constant from the first call on.
[[nodiscard]] const Api& api();

}  // namespace farandole::tf
