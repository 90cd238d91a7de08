/* The plugin interface of network transports.  A plugin is a shared library libmkernel-NAME.so that exports one constant
 * table, mkTransport_v1.  The library looks for it in the directories of MKERNEL_PLUGIN_PATH, in `mkernel/` beside
 * libmkernel.so, and in the directory compiled in.  Tables are append only; entries marked optional may be NULL; an
 * incompatible change gets a new symbol.  Plugins include this folder's headers and nothing else of the library.
 *
 * What a transport does: one-sided writes from registered memory here into registered memory of a peer, each followed
 * by a notification.  Two contracts:
 *   ordered     the plugin writes the payload and then the 8-byte flag (mkTransportWrite_t.flag) into the peer's memory,
 *               such that nobody who sees the flag misses the payload.
 *   completion  the plugin carries a 32-bit immediate; the peer's poll() returns it as an event, once or more often, after
 *               the payload is visible there.  `flag` is ignored.
 * In both: before the local completion event a write and its notification may be repeated; after it the transport never
 * touches the destination again.  Writes complete and arrive in any order, but for the rule above.
 *
 * Threads.  One thread at a time calls into an endpoint.  Calls never block longer than their timeout; post and poll never
 * block.  Return values are mkResult_t codes; 0 is success.  After a failure lastError gives the reason; so it does after
 * a poll that returned MK_EVENT_ERROR.
 */
#ifndef MKERNEL_TRANSPORT_H_
#define MKERNEL_TRANSPORT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MK_TRANSPORT_ABI_MAJOR 1u
#define MK_TRANSPORT_ABI_MINOR 1u
#define MK_TRANSPORT_SYMBOL "mkTransport_v1"

#define MK_CONTRACT_ORDERED 1u
#define MK_CONTRACT_COMPLETION 2u

#define MK_TRANSPORT_ADDRESS_BYTES 256 /* where an endpoint can be reached */
#define MK_TRANSPORT_KEY_BYTES 64      /* how a peer names registered memory */

/* What the library lends to a plugin.  Valid from init to fini. */
typedef struct {
  uint32_t structSize;
  uint32_t abiMajor, abiMinor; /* of the library */
  uint32_t reserved;
  /* level: 1 warning, 2 information, 3 trace. */
  void (*log)(int level, const char* file, int line, const char* text);
  /* Value of a declared parameter (MKERNEL_...), or NULL if there is no such parameter. */
  const char* (*param)(const char* name);
} mkTransportHost_t;

typedef struct {
  uint32_t structSize;
  char name[64];
  char pciBusId[16];       /* "" if none */
  uint64_t bytesPerSecond; /* 0: unknown */
} mkTransportDevice_t;

/* Properties that hold for all endpoints of a context. */
typedef struct {
  uint32_t structSize;
  uint32_t contract;       /* MK_CONTRACT_... */
  uint32_t immediateBits;  /* completion contract: at least 32 */
  uint32_t maxBatch;       /* writes taken by one post; at least 1 */
  uint32_t maxOutstanding; /* writes to one peer whose MK_EVENT_SENT is still to come from poll; no more are accepted */
  uint32_t devicePosted;   /* 1 if endpoint queues can be written by the GPU */
  uint64_t maxBytes;       /* of one write */
} mkTransportProperties_t;

#define MK_MEMORY_KIND_HOST 1u
#define MK_MEMORY_KIND_CUDA 2u
typedef struct {
  uint32_t structSize;
  uint32_t kind; /* MK_MEMORY_KIND_... */
  void* address;
  uint64_t bytes;
  int32_t fd; /* descriptor the memory was mapped from (memfd, DMA-BUF, exported CUDA allocation), or -1 */
  int32_t reserved;
  uint64_t fdOffset; /* of `address` in it */
} mkTransportMemory_t;

typedef struct {
  const void* source;    /* local address inside localMemory; unused, like the next three, when bytes is 0 */
  void* localMemory;     /* from registerMemory */
  void* remoteMemory;    /* from importMemory, of the peer posted to */
  uint64_t remoteOffset; /* of the destination, from the start of the remote registration */
  uint64_t bytes;        /* may be 0: a notification alone */
  void* flagMemory;      /* ordered contract: remote registration that holds the flag */
  uint64_t flagOffset;   /* multiple of 8 */
  uint64_t flagValue;
  uint32_t immediate; /* completion contract */
  uint32_t queue;     /* writes of one queue and peer share a connection; any value is legal */
  uint64_t cookie;    /* returned by the completion event */
} mkTransportWrite_t;

#define MK_EVENT_SENT 1u    /* the write with `cookie` has completed locally; status tells how */
#define MK_EVENT_ARRIVED 2u /* completion contract: `immediate` from `peer` */
#define MK_EVENT_ERROR 3u   /* `peer` (or the device, peer -1) has failed; no write will succeed any more */
/* Since 1.1.  Of the queue handed out for `peer`: `immediate` more entries that ask for a completion have completed, and room
 * is again up to entry `cookie`. */
#define MK_EVENT_RETIRED 4u
typedef struct {
  uint32_t kind;  /* MK_EVENT_... */
  int32_t peer;   /* index given to connect */
  int32_t status; /* mkResult_t */
  uint32_t immediate;
  uint64_t cookie;
} mkTransportEvent_t;

typedef struct {
  uint32_t structSize;
  uint32_t abiMajor, abiMinor;
  uint32_t reserved;
  const char* name;

  /* Loads whatever the transport needs.  A failure means "not usable here": lastError says why. */
  int (*init)(const mkTransportHost_t* host, void** context);
  void (*fini)(void* context);
  /* Reason of the calling thread's last failure; never NULL. */
  const char* (*lastError)(void);

  int (*deviceCount)(void* context, int* count);
  int (*deviceInfo)(void* context, int index, mkTransportDevice_t* device);
  int (*properties)(void* context, mkTransportProperties_t* properties);

  /* An endpoint on one device.  `address` (MK_TRANSPORT_ADDRESS_BYTES) goes to every peer. */
  int (*open)(void* context, int device, void** endpoint, uint8_t* address);
  /* Collective among the peers: connects to `count` peers; peer i is at addresses + i * MK_TRANSPORT_ADDRESS_BYTES, and
   * entry `self` is this endpoint's own and is skipped. */
  int (*connect)(void* endpoint, int count, int self, const uint8_t* addresses, int timeoutMs);
  /* Registers memory for both directions, after connect.  `key` (MK_TRANSPORT_KEY_BYTES) goes to every peer.  For memory
   * of a kind that the device cannot reach, mkErrorNotSupported: the caller may copy through host memory instead. */
  int (*registerMemory)(void* endpoint, const mkTransportMemory_t* memory, void** handle, uint8_t* key);
  int (*deregisterMemory)(void* endpoint, void* handle);
  /* Makes a peer's registration usable as a destination; the peer need not be in a call. */
  int (*importMemory)(void* endpoint, int peer, const uint8_t* key, int timeoutMs, void** remote);
  int (*releaseMemory)(void* endpoint, void* remote);
  /* Takes the first *accepted (0 to count) writes, all to one peer, as one submission.  Fewer than count: no room now.
   * On failure none of them is taken. */
  int (*post)(void* endpoint, int peer, const mkTransportWrite_t* writes, int count, int* accepted);
  /* Makes progress and fills in up to `capacity` events. */
  int (*poll)(void* endpoint, mkTransportEvent_t* events, int capacity, int* count);
  /* After close returns, nothing of this endpoint reads local or writes remote memory any more; writes outstanding may
   * or may not have arrived.  Frees registrations and imports that are left. */
  int (*close)(void* endpoint);

  /* Optional: hands out the queue to a peer, to be written by agents themselves; an mkQueueDescriptor_t (mkernel/queue.h).
   * The caller has set structSize (`bytes`), kind and version to what it can write; mkErrorVersion, and nothing handed out,
   * if this queue is of another.  From then on post() to that peer is refused, and poll() reports MK_EVENT_RETIRED. */
  int (*queueDescriptor)(void* endpoint, int peer, void* descriptor, size_t bytes);
  /* Optional, since 1.1, with queueDescriptor: how queue entries name a registration (local) or an import (remote), of
   * which one is NULL; an mkQueueMemory_t with structSize set. */
  int (*memoryDescriptor)(void* endpoint, void* local, void* remote, void* descriptor, size_t bytes);
} mkTransport_t;

#ifdef __cplusplus
}
#endif
#endif /* MKERNEL_TRANSPORT_H_ */
