/* Transport plugins that are wrong in one way each, for the loader's tests.  STUB_NAME is the name in the table; one of the
 * macros STUB_... below chooses the fault, none makes a plugin that loads. */
#include <stddef.h>
#include <string.h>

#include "mkernel.h"
#include "mkernel/transport.h"

#define STUB_EXPORT __attribute__((visibility("default")))

/* How often they were called, for the test to read. */
STUB_EXPORT int stubInits = 0;
STUB_EXPORT int stubFinis = 0;

#ifdef STUB_UNDEFINED
extern int mkStubNowhereDefined(void);
#endif

static const char* reason = "";

static int stubInit(const mkTransportHost_t* host, void** context) {
  ++stubInits;
#ifdef STUB_UNDEFINED
  if (mkStubNowhereDefined() != 0) return mkErrorSystem;
#endif
#ifdef STUB_INIT_FAILS
  reason = "the driver is too old: 4, at least 7 is needed";
  (void)host;
  (void)context;
  return mkErrorSystem;
#else
  reason = "the host's structure is wrong";
  if (host->structSize < sizeof(*host) || host->abiMajor != 1 || host->log == NULL) return mkErrorInternal;
  /* A declared parameter has a value, others have none. */
  if (host->param("MKERNEL_RING_SLOTS") == NULL || strcmp(host->param("MKERNEL_RING_SLOTS"), "1024") != 0)
    return mkErrorInternal;
  if (host->param("MKERNEL_STUB") != NULL) return mkErrorInternal;
  host->log(2, __FILE__, __LINE__, "the stub says hello, 100%s");
  *context = &stubInits;
  return mkSuccess;
#endif
}

static void stubFini(void* context) { stubFinis += context == &stubInits; }
static const char* stubLastError(void) { return reason; }

static int stubDeviceCount(void* context, int* count) {
  (void)context;
#ifdef STUB_DEVICES_FAIL
  (void)count;
  reason = "the bus does not answer";
  return mkErrorSystem;
#elif defined(STUB_NO_DEVICES)
  *count = 0;
  return mkSuccess;
#else
  *count = 2;
  return mkSuccess;
#endif
}

static int stubDeviceInfo(void* context, int index, mkTransportDevice_t* device) {
  (void)context;
  (void)index;
  (void)device;
  return mkErrorNotSupported;
}

static int stubProperties(void* context, mkTransportProperties_t* properties) {
  (void)context;
  if (properties->structSize < sizeof(*properties)) return mkErrorVersion;
#ifdef STUB_BAD_CONTRACT
  properties->contract = 9;
#elif defined(STUB_NARROW)
  properties->contract = MK_CONTRACT_COMPLETION;
  properties->immediateBits = 16;
#else
  properties->contract = MK_CONTRACT_COMPLETION;
  properties->immediateBits = 32;
#endif
  properties->maxBatch = 4;
#ifndef STUB_NO_ROOM
  properties->maxOutstanding = 4;
#endif
  properties->maxBytes = 1024;
  properties->devicePosted = 1;
  return mkSuccess;
}

static int stubOpen(void* context, int device, void** endpoint, uint8_t* address) {
  (void)context;
  (void)device;
  (void)endpoint;
  (void)address;
  return mkErrorNotSupported;
}
static int stubConnect(void* endpoint, int count, int self, const uint8_t* addresses, int timeoutMs) {
  (void)endpoint;
  (void)count;
  (void)self;
  (void)addresses;
  (void)timeoutMs;
  return mkErrorNotSupported;
}
static int stubRegister(void* endpoint, const mkTransportMemory_t* memory, void** handle, uint8_t* key) {
  (void)endpoint;
  (void)memory;
  (void)handle;
  (void)key;
  return mkErrorNotSupported;
}
static int stubRelease(void* endpoint, void* handle) {
  (void)endpoint;
  (void)handle;
  return mkErrorNotSupported;
}
static int stubImport(void* endpoint, int peer, const uint8_t* key, int timeoutMs, void** remote) {
  (void)endpoint;
  (void)peer;
  (void)key;
  (void)timeoutMs;
  (void)remote;
  return mkErrorNotSupported;
}
#ifndef STUB_LACKS_ENTRY
static int stubPost(void* endpoint, int peer, const mkTransportWrite_t* writes, int count, int* accepted) {
  (void)endpoint;
  (void)peer;
  (void)writes;
  (void)count;
  (void)accepted;
  return mkErrorNotSupported;
}
#else
#define stubPost NULL
#endif
static int stubPoll(void* endpoint, mkTransportEvent_t* events, int capacity, int* count) {
  (void)endpoint;
  (void)events;
  (void)capacity;
  (void)count;
  return mkErrorNotSupported;
}
static int stubClose(void* endpoint) {
  (void)endpoint;
  return mkErrorNotSupported;
}

/* What a later minor version of the interface may look like. */
typedef struct {
  mkTransport_t known;
  int (*later)(void* endpoint);
  uint64_t more[4];
} StubTable;

#if defined(STUB_TRUNCATED)
#define STUB_SIZE offsetof(mkTransport_t, poll)
#elif defined(STUB_EMPTY)
#define STUB_SIZE 0
#elif defined(STUB_WITHOUT_OPTIONAL)
#define STUB_SIZE offsetof(mkTransport_t, queueDescriptor)
#elif defined(STUB_NEWER_MINOR)
#define STUB_SIZE sizeof(StubTable)
#else
#define STUB_SIZE sizeof(mkTransport_t)
#endif
#ifdef STUB_MAJOR
#define STUB_MINOR 3
#else
#define STUB_MAJOR MK_TRANSPORT_ABI_MAJOR
#ifdef STUB_NEWER_MINOR
#define STUB_MINOR (MK_TRANSPORT_ABI_MINOR + 6)
#else
#define STUB_MINOR MK_TRANSPORT_ABI_MINOR
#endif
#endif

/* Behind the size that STUB_WITHOUT_OPTIONAL claims lies something that is no function. */
#ifdef STUB_WITHOUT_OPTIONAL
#define STUB_QUEUE ((int (*)(void*, int, void*, size_t))(uintptr_t)0x1234)
#else
#define STUB_QUEUE NULL
#endif

#ifdef STUB_NO_SYMBOL
#define STUB_SYMBOL mkTransport_v2
#else
#define STUB_SYMBOL mkTransport_v1
#endif
extern const StubTable STUB_SYMBOL;
STUB_EXPORT const StubTable STUB_SYMBOL = {{(uint32_t)STUB_SIZE,
                                            STUB_MAJOR,
                                            STUB_MINOR,
                                            0,
                                            STUB_NAME,
                                            stubInit,
                                            stubFini,
                                            stubLastError,
                                            stubDeviceCount,
                                            stubDeviceInfo,
                                            stubProperties,
                                            stubOpen,
                                            stubConnect,
                                            stubRegister,
                                            stubRelease,
                                            stubImport,
                                            stubRelease,
                                            stubPost,
                                            stubPoll,
                                            stubClose,
                                            STUB_QUEUE,
                                            0},
                                           stubClose,
                                           {1, 2, 3, 4}};
