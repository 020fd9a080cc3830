/* What tests/fakes has not: NCCL and NVIDIA's management library, as far as they say what there is, and a driver
 * of two devices that are parts of one or have NVLink between them. Compiled once for each library, by
 * conftest.py, with its name defined.
 *
 * Environment: FAKE_CUDA_PART (0), FAKE_CUDA_LINKED (0), FAKE_CUDA_RDMA (0), FAKE_CUDA_ABORT (0),
 * FAKE_NCCL_VERSION (22703), FAKE_NCCL_ABORT (0), FAKE_NVML_LINKS (18). */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEN __attribute__((visibility("default")))

static int number(const char* variable, int otherwise) {
  const char* text = getenv(variable);
  return text == NULL ? otherwise : atoi(text);
}

#ifdef DRIVER

SEEN int cuInit(unsigned flags) {
  if (number("FAKE_CUDA_ABORT", 0)) abort();
  return (int)flags;
}
SEEN int cuDriverGetVersion(int* version) { return *version = 12080, 0; }
SEEN int cuDeviceGetCount(int* devices) { return *devices = 2, 0; }
SEEN int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
SEEN int cuDeviceGetName(char* name, int length, int device) {
  return snprintf(name, (size_t)length, "Odd device %d", device), 0;
}
SEEN int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = (size_t)device << 30, 0; }
SEEN int cuDeviceGetPCIBusId(char* text, int length, int device) {
  return snprintf(text, (size_t)length, "0000:%02X:00.0", 0x1A + device), 0;
}
SEEN int cuDeviceGetUuid(unsigned char* uuid, int device) {
  memset(uuid, 0xAB, 16);
  return uuid[15] = (unsigned char)device, 0;
}
SEEN int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  cuDeviceGetUuid(uuid, device);
  if (number("FAKE_CUDA_PART", 0)) uuid[0] = 0xCD;
  return 0;
}
SEEN int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 116 ? number("FAKE_CUDA_RDMA", 0) : 0;
  return device < 0;
}
SEEN int cuDeviceCanAccessPeer(int* can, int device, int peer) { return *can = device != peer, 0; }
SEEN int cuDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
  return *value = attribute == 3 && device != peer && number("FAKE_CUDA_LINKED", 0), 0;
}

#elif defined NCCL

SEEN int ncclGetVersion(int* version) {
  if (number("FAKE_NCCL_ABORT", 0)) abort();
  return *version = number("FAKE_NCCL_VERSION", 22703), 0;
}

#elif defined MANAGEMENT

SEEN int nvmlInit_v2(void) { return 0; }
SEEN int nvmlShutdown(void) { return 0; }
SEEN int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  static char handle;
  return *device = &handle, address[0] == '\0';
}
SEEN int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* state) {
  return *state = link < (unsigned)number("FAKE_NVML_LINKS", 18), device == NULL;
}

#endif
