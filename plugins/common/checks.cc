// See checks.h.
#include "common/checks.h"

namespace mk::plugin {

void checkConnect(bool tried, int count, int self, const uint8_t* addresses, int timeoutMs) {
  if (tried) fail(mkErrorInvalidUsage, "connect was called before on this endpoint");
  if (addresses == nullptr) fail(mkErrorInvalidArgument, "addresses is NULL");
  if (count < 1 || self < 0 || self >= count)
    fail(mkErrorInvalidArgument, "self %d of count %d: must be 0 to count - 1", self, count);
  if (timeoutMs < 0) fail(mkErrorInvalidArgument, "timeoutMs %d: must not be negative", timeoutMs);
}

void checkConnected(bool connected) {
  if (!connected) fail(mkErrorInvalidUsage, "the endpoint is not connected");
}

void checkPeer(bool connected, size_t count, int index) {
  checkConnected(connected);
  if (index < 0 || static_cast<size_t>(index) >= count)
    fail(mkErrorInvalidArgument, "peer %d: must be 0 to %zu", index, count - 1);
}

void checkNotSelf(bool self, int index) {
  if (self) fail(mkErrorInvalidArgument, "peer %d is this endpoint itself", index);
}

void checkMemory(bool connected, const mkTransportMemory_t& memory) {
  checkConnected(connected);
  if (memory.structSize < sizeof(memory))
    fail(mkErrorVersion, "mkTransportMemory_t of %u bytes; this plugin needs %zu", memory.structSize, sizeof(memory));
  if (memory.kind != MK_MEMORY_KIND_HOST && memory.kind != MK_MEMORY_KIND_CUDA)
    fail(mkErrorNotSupported, "memory kind %u: legal are %u (host) and %u (CUDA)", memory.kind, MK_MEMORY_KIND_HOST,
         MK_MEMORY_KIND_CUDA);
  if (memory.address == nullptr || memory.bytes == 0)
    fail(mkErrorInvalidArgument, "memory of %llu bytes at %p: neither may be zero", wide(memory.bytes), memory.address);
}

void checkBatch(const mkTransportWrite_t* writes, int count) {
  if (count < 0 || (count > 0 && writes == nullptr))
    fail(mkErrorInvalidArgument, "count %d with writes %p: must be at least 0, with writes", count,
         static_cast<const void*>(writes));
}

void checkSize(const mkTransportWrite_t& write, uint64_t most) {
  if (write.bytes > most)
    fail(mkErrorInvalidArgument, "write of %llu bytes; at most %llu", wide(write.bytes), wide(most));
}

void checkSource(const mkTransportWrite_t& write, const void* base, uint64_t size) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(write.source), first = reinterpret_cast<uintptr_t>(base);
  if (start < first || start - first > size || write.bytes > size - (start - first))
    fail(mkErrorInvalidArgument, "source [%p, +%llu) lies outside its registration [%p, +%llu)", write.source,
         wide(write.bytes), base, wide(size));
}

void checkDestination(const mkTransportWrite_t& write, uint64_t room) {
  if (write.remoteOffset > room || write.bytes > room - write.remoteOffset)
    fail(mkErrorInvalidArgument, "destination [%llu, +%llu) lies outside the registration of %llu bytes",
         wide(write.remoteOffset), wide(write.bytes), wide(room));
}

void checkFlag(const mkTransportWrite_t& write, uint64_t base, uint64_t room) {
  if (write.flagOffset % 8 != 0 || base % 8 != 0)
    fail(mkErrorInvalidArgument, "flag at offset %llu: its address must be a multiple of 8", wide(write.flagOffset));
  if (write.flagOffset > room || room - write.flagOffset < 8)
    fail(mkErrorInvalidArgument, "flag [%llu, +8) lies outside the registration of %llu bytes", wide(write.flagOffset),
         wide(room));
}

void checkEvents(const mkTransportEvent_t* events, int capacity) {
  if (capacity < 0 || (capacity > 0 && events == nullptr))
    fail(mkErrorInvalidArgument, "capacity %d with events %p: must be at least 0, with events", capacity,
         static_cast<const void*>(events));
}

}  // namespace mk::plugin
