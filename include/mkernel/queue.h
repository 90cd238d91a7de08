/* The device command queue: how an agent asks for one network transfer.  Shared by device code, the proxy and plugins.
 *
 * A command is 48 bytes, six 8-byte words, none of which holds a field that straddles it.  Agents write words 1 to 5 and
 * then word 0, the header, with release; its lap makes the slot valid, so slots are never cleared.  The proxy reads a
 * slot, returns a credit, and counts a completion when the transfer has completed.  See src/protocol/command_ring.h for
 * the producer's side and src/host/proxy.cc for the consumer's.
 */
#ifndef MKERNEL_QUEUE_H_
#define MKERNEL_QUEUE_H_

#include <stdint.h>

#define MK_COMMAND_WORDS 6
#define MK_COMMAND_BYTES 48

/* Header (word 0): lap 16 bits | op 8 | queue 8 | peer 16 | zero 16, from the low end up.  The lap counts from 1 and
 * wraps from 65535 to 1, so that a slot of zeros is never valid. */
#define MK_COMMAND_OP_WRITE 1u /* copy `bytes` (may be 0) to the destination, then raise the slot's flag there */

typedef struct {
  uint64_t header;      /* word 0 */
  uint64_t source;      /* word 1: memory 16 bits | offset 48 bits, in the sender's memory table */
  uint64_t destination; /* word 2: the same in the receiver's memory table */
  uint64_t bytes;       /* word 3 */
  uint64_t slot;        /* word 4: the receiver's arrival slot (chunk); up to 2^20 - 1 */
  uint64_t epoch;       /* word 5 */
} mkCommand_t;

/* Entry 0 of every memory table is the rank's heap. */
#define MK_MEMORY_HEAP 0u

#ifdef __CUDACC__
#define MK_QUEUE_FN __host__ __device__ static inline
#else
#define MK_QUEUE_FN static inline
#endif

MK_QUEUE_FN uint16_t mkCommandLap(uint64_t index, uint64_t ringSlots) {
  return (uint16_t)(index / ringSlots % 65535u + 1u);
}
MK_QUEUE_FN uint64_t mkCommandHeader(uint16_t lap, uint32_t op, uint32_t queue, uint32_t peer) {
  return (uint64_t)lap | (uint64_t)(op & 0xffu) << 16 | (uint64_t)(queue & 0xffu) << 24 |
         (uint64_t)(peer & 0xffffu) << 32;
}
MK_QUEUE_FN uint16_t mkHeaderLap(uint64_t header) { return (uint16_t)(header & 0xffffu); }
MK_QUEUE_FN uint32_t mkHeaderOp(uint64_t header) { return (uint32_t)(header >> 16 & 0xffu); }
MK_QUEUE_FN uint32_t mkHeaderQueue(uint64_t header) { return (uint32_t)(header >> 24 & 0xffu); }
MK_QUEUE_FN uint32_t mkHeaderPeer(uint64_t header) { return (uint32_t)(header >> 32 & 0xffffu); }

MK_QUEUE_FN uint64_t mkPlace(uint32_t memory, uint64_t offset) { return (uint64_t)(memory & 0xffffu) | offset << 16; }
MK_QUEUE_FN uint32_t mkPlaceMemory(uint64_t place) { return (uint32_t)(place & 0xffffu); }
MK_QUEUE_FN uint64_t mkPlaceOffset(uint64_t place) { return place >> 16; }

/* Notification of an arrived write under the completion contract, 32 bits: sender's rail index 10 | slot 20 | epoch's low
 * 2 bits.  The receiver completes the epoch from a reference: for chunks the newest epoch it has entered (only that one and
 * the one before can be under way), for control slots the newest epoch seen in that slot from that sender (each is sent
 * after the one before has completed, so only that one, repeated, or the next can come). */
#define MK_SLOT_BITS 20
MK_QUEUE_FN uint32_t mkImmediate(uint32_t railIndex, uint64_t slot, uint64_t epoch) {
  return (railIndex & 0x3ffu) << 22 | (uint32_t)(slot & 0xfffffu) << 2 | (uint32_t)(epoch & 3u);
}
MK_QUEUE_FN uint32_t mkImmediateRail(uint32_t imm) { return imm >> 22; }
MK_QUEUE_FN uint64_t mkImmediateSlot(uint32_t imm) { return imm >> 2 & 0xfffffu; }
/* The result lies in [reference - 2, reference + 1]. */
MK_QUEUE_FN uint64_t mkImmediateEpoch(uint32_t imm, uint64_t reference) {
  return reference + 1u - ((reference + 1u - imm) & 3u);
}

/* ---- Queues that agents write themselves ------------------------------------------------------------------------------
 *
 * A transport whose card can be fed without the proxy describes its queues by mkTransport_t.queueDescriptor.  What writes
 * them is compiled into the library, per kind (src/protocol/mlx5_queue.h); queues of another kind or version are left to the
 * proxy. */
#define MK_QUEUE_KIND_MLX5 1u
#define MK_QUEUE_MLX5_VERSION 1u

/* A kind comes with its layout's version; the caller sets both, and structSize, before it asks.
 *
 * The send queue of one connection.  Of kind mlx5: a reliable connection whose entries are laid out as mlx5 cards read
 * them.  Addresses are those of the process; before a GPU writes there, `entries` and `record` must be mapped for it as host
 * memory, and the page of `doorbell` as a device's registers. */
typedef struct {
  uint32_t structSize;
  uint32_t kind;       /* MK_QUEUE_KIND_... */
  uint32_t version;    /* of the kind's layout: MK_QUEUE_MLX5_VERSION */
  uint32_t number;     /* of the queue pair, 24 bits */
  void* entries;       /* entryCount basic blocks of 64 bytes, aligned to 64 */
  void* record;        /* doorbell record: the send counter's 4 bytes */
  void* doorbell;      /* 8-byte register */
  uint32_t entryCount; /* a power of two, 4 to 4096 */
  uint32_t immediates; /* 0: the payload is followed by an inline write of the flag; 1: it carries the immediate */
  uint64_t firstIndex; /* of the next entry: what the transport itself has posted lies before it */
  uint64_t maxBytes;   /* of one write */
} mkQueueDescriptor_t;

/* How entries name registered memory. */
typedef struct {
  uint32_t structSize;
  uint32_t key;
  uint64_t address; /* of its first byte, as the card knows it */
  uint64_t bytes;
} mkQueueMemory_t;

#endif /* MKERNEL_QUEUE_H_ */
