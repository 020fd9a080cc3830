/* The few functions of a vendor's libraries that say what devices there are; no device can be used through
 * them. Compiled once for each library, by tests/vendor/libraries.py, with the name of that library defined.
 *
 * Environment: FAKE_CUDA_DEVICES (1), FAKE_CUDA_PEERS (1), FAKE_CUDA_LINKED (0), FAKE_CUDA_RDMA (1),
 * FAKE_CUDA_VERSION (12040), FAKE_CUDA_INIT (0: the status of cuInit), FAKE_CUDA_MIG (0), FAKE_NCCL_VERSION
 * (22703), FAKE_NVML_LINKS (18). */
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

static int started = 0;

/* Entries of CUDA_VISIBLE_DEVICES count by their number only: each may be any text. */
static int count(void) {
  int there = number("FAKE_CUDA_DEVICES", 1), entries = 0;
  const char* mask = getenv("CUDA_VISIBLE_DEVICES");
  if (mask == NULL) return there;
  if (*mask != '\0') entries = 1;
  for (; *mask != '\0'; ++mask) entries += *mask == ',';
  return entries < there ? entries : there;
}

/* The device that is meant by an ordinal, as numbers in the mask say it. */
static int meant(int ordinal) {
  const char* mask = getenv("CUDA_VISIBLE_DEVICES");
  if (mask == NULL) return ordinal;
  for (; ordinal > 0 && mask != NULL; --ordinal) mask = strchr(mask, ',') + 1;
  return mask[0] >= '0' && mask[0] <= '9' ? atoi(mask) : 0;
}

SEEN int cuInit(unsigned flags) {
  int status = number("FAKE_CUDA_INIT", 0);
  if (number("FAKE_CUDA_ABORT", 0)) abort();
  if (status == 0 && count() == 0) return 100;
  started = status == 0;
  return status + (int)flags;
}
SEEN int cuDriverGetVersion(int* version) { return *version = number("FAKE_CUDA_VERSION", 12040), 0; }
SEEN int cuGetErrorName(int status, const char** name) {
  if (status != 803) return 1;
  return *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 0;
}
SEEN int cuGetErrorString(int status, const char** text) {
  if (status != 803) return 1;
  return *text = "system has unsupported display driver / cuda driver combination", 0;
}
SEEN int cuDeviceGetCount(int* devices) { return started ? (*devices = count(), 0) : 3; }
SEEN int cuDeviceGet(int* device, int ordinal) { return *device = meant(ordinal), 0; }
SEEN int cuDeviceGetName(char* name, int length, int device) {
  return snprintf(name, (size_t)length, "Fake device %d", device), 0;
}
SEEN int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = ((size_t)80 << 30) + (size_t)device, 0; }
SEEN int cuDeviceGetPCIBusId(char* text, int length, int device) {
  return snprintf(text, (size_t)length, "0000:%02X:00.0", 0x1A + device), 0;
}
SEEN int cuDeviceGetUuid(unsigned char* uuid, int device) {
  memset(uuid, 0xAB, 16);
  return uuid[15] = (unsigned char)device, 0;
}
SEEN int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  cuDeviceGetUuid(uuid, device);
  if (number("FAKE_CUDA_MIG", 0)) uuid[0] = 0xCD;
  return 0;
}
SEEN int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 116 ? number("FAKE_CUDA_RDMA", 1) : 0;
  return device < 0;
}
SEEN int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  return *can = device != peer && number("FAKE_CUDA_PEERS", 1), 0;
}
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
