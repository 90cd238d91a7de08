/* Pins the layout of every public structure and the value of every public constant (x86-64, LP64), as C and as C++.  A
 * change here is a change of the binary interface: ABI.md says which are allowed, and pins_test.py that nothing public
 * is missing from this file.  abidiff does not see macros and the plugin table, and misses some changes of layout.
 */
#include <stddef.h>

#include "mkernel.h"
#include "mkernel/queue.h"
#include "mkernel/transport.h"

#ifdef __cplusplus
#define PIN(name, condition) static_assert(condition, #name)
#else
#define PIN(name, condition) typedef char pin_##name[(condition) ? 1 : -1]
#endif
/* No padding at the end: an appended field must change the size, or structSize could not tell old from new. */
#define STRUCT(type, bytes, last) \
  PIN(type, sizeof(type) == (bytes) && offsetof(type, last) + sizeof(((type*)0)->last) == (bytes))
#define FIELD(type, field, offset, bytes) \
  PIN(type##_##field, offsetof(type, field) == (offset) && sizeof(((type*)0)->field) == (bytes))
#define VALUE(name, value) PIN(value_of_##name, (name) == (value))

PIN(lp64, sizeof(void*) == 8 && sizeof(size_t) == 8 && sizeof(long) == 8);
PIN(enums_are_32_bits, sizeof(mkResult_t) == 4 && sizeof(mkDataType_t) == 4);

/* ---- mkernel.h ---- */

VALUE(mkSuccess, 0);
VALUE(mkErrorUnhandledCuda, 1);
VALUE(mkErrorSystem, 2);
VALUE(mkErrorInternal, 3);
VALUE(mkErrorInvalidArgument, 4);
VALUE(mkErrorInvalidUsage, 5);
VALUE(mkErrorRemote, 6);
VALUE(mkErrorInProgress, 7);
VALUE(mkErrorTimeout, 8);
VALUE(mkErrorVersion, 64);
VALUE(mkErrorNotSupported, 65);
VALUE(mkErrorNotReserved, 66);
VALUE(mkErrorNotRegistered, 67);
VALUE(mkErrorTransport, 68);
VALUE(mkErrorRevoked, 69);
VALUE(mkErrorCapture, 70);
VALUE(mkInt8, 0);
VALUE(mkFloat16, 6);
VALUE(mkFloat32, 7);
VALUE(mkFloat64, 8);
VALUE(mkBfloat16, 9);

VALUE(MK_UNIQUE_ID_BYTES, 128);
VALUE(MK_ID_CONFIG, 0x6d6b0001u);
VALUE(MK_ID_COMM_INFO, 0x6d6b0002u);
VALUE(MK_ID_BUILD_INFO, 0x6d6b0003u);
VALUE(MK_ID_TRANSPORT_INFO, 0x6d6b0004u);
VALUE(MK_ID_PARAM_INFO, 0x6d6b0005u);
VALUE(MK_ID_TUNE, 0x6d6b0006u);
VALUE(MK_ID_GEMM_ALL_REDUCE_ARGS, 0x6d6b0010u);
VALUE(MK_ID_GEMM_REDUCE_SCATTER_ARGS, 0x6d6b0011u);
VALUE(MK_ID_ALL_GATHER_GEMM_ARGS, 0x6d6b0012u);
VALUE(MK_MAX_DIMS, 5);
VALUE(MK_NET_PATH_DIRECT, 1);
VALUE(MK_NET_PATH_STAGED, 2);
VALUE(MK_LAYOUT_KN, 1);
VALUE(MK_LAYOUT_NK, 2);
VALUE(MK_ACTIVATION_NONE, 1);
VALUE(MK_ACTIVATION_RELU, 2);
VALUE(MK_ACTIVATION_GELU, 3);
VALUE(MK_ACTIVATION_SILU, 4);
VALUE(MK_EXCHANGE_SWAP, 1);
VALUE(MK_EXCHANGE_HOME, 2);
VALUE(MK_EXCHANGE_DIRECT, 3);
VALUE(MK_EXCHANGE_RING, 4);
VALUE(MK_OP_GEMM_ALL_REDUCE, 1);
VALUE(MK_OP_GEMM_REDUCE_SCATTER, 2);
VALUE(MK_OP_ALL_GATHER_GEMM, 3);

STRUCT(mkUniqueId_t, 128, internal);
FIELD(mkUniqueId_t, internal, 0, 128);

STRUCT(mkTensor_t, 128, reserved);
FIELD(mkTensor_t, data, 0, 8);
FIELD(mkTensor_t, window, 8, 8);
FIELD(mkTensor_t, offset, 16, 8);
FIELD(mkTensor_t, dtype, 24, 4);
FIELD(mkTensor_t, ndim, 28, 4);
FIELD(mkTensor_t, dims, 32, 40);
FIELD(mkTensor_t, strides, 72, 40);
FIELD(mkTensor_t, reserved, 112, 16);

STRUCT(mkBuildInfo_t, 56, transportAbiMinor);
FIELD(mkBuildInfo_t, structSize, 0, 4);
FIELD(mkBuildInfo_t, structId, 4, 4);
FIELD(mkBuildInfo_t, version, 8, 4);
FIELD(mkBuildInfo_t, cudaVersion, 12, 4);
FIELD(mkBuildInfo_t, revision, 16, 8);
FIELD(mkBuildInfo_t, compiler, 24, 8);
FIELD(mkBuildInfo_t, platforms, 32, 8);
FIELD(mkBuildInfo_t, cudaArchs, 40, 8);
FIELD(mkBuildInfo_t, transportAbiMajor, 48, 4);
FIELD(mkBuildInfo_t, transportAbiMinor, 52, 4);

STRUCT(mkConfig_t, 56, maxSMs);
FIELD(mkConfig_t, structSize, 0, 4);
FIELD(mkConfig_t, structId, 4, 4);
FIELD(mkConfig_t, platform, 8, 8);
FIELD(mkConfig_t, hostId, 16, 8);
FIELD(mkConfig_t, transport, 24, 8);
FIELD(mkConfig_t, heapBytes, 32, 8);
FIELD(mkConfig_t, timeoutMs, 40, 4);
FIELD(mkConfig_t, initTimeoutMs, 44, 4);
FIELD(mkConfig_t, teardownTimeoutMs, 48, 4);
FIELD(mkConfig_t, maxSMs, 52, 4);

STRUCT(mkCommInfo_t, 104, reserved0);
FIELD(mkCommInfo_t, structSize, 0, 4);
FIELD(mkCommInfo_t, structId, 4, 4);
FIELD(mkCommInfo_t, nranks, 8, 4);
FIELD(mkCommInfo_t, rank, 12, 4);
FIELD(mkCommInfo_t, nnodes, 16, 4);
FIELD(mkCommInfo_t, node, 20, 4);
FIELD(mkCommInfo_t, ranksPerNode, 24, 4);
FIELD(mkCommInfo_t, localRank, 28, 4);
FIELD(mkCommInfo_t, device, 32, 4);
FIELD(mkCommInfo_t, smCount, 36, 4);
FIELD(mkCommInfo_t, heapBytes, 40, 8);
FIELD(mkCommInfo_t, nextEpoch, 48, 8);
FIELD(mkCommInfo_t, netBytesSent, 56, 8);
FIELD(mkCommInfo_t, netMessagesSent, 64, 8);
FIELD(mkCommInfo_t, netBatches, 72, 8);
FIELD(mkCommInfo_t, platform, 80, 8);
FIELD(mkCommInfo_t, transport, 88, 8);
FIELD(mkCommInfo_t, netPath, 96, 4);
FIELD(mkCommInfo_t, reserved0, 100, 4);

STRUCT(mkTune_t, 44, chunkRows);
FIELD(mkTune_t, structSize, 0, 4);
FIELD(mkTune_t, structId, 4, 4);
FIELD(mkTune_t, tileM, 8, 4);
FIELD(mkTune_t, tileN, 12, 4);
FIELD(mkTune_t, chunkTiles, 16, 4);
FIELD(mkTune_t, exchange, 20, 4);
FIELD(mkTune_t, computeAgents, 24, 4);
FIELD(mkTune_t, receiveAgents, 28, 4);
FIELD(mkTune_t, minSMs, 32, 4);
FIELD(mkTune_t, reserved0, 36, 4);
FIELD(mkTune_t, chunkRows, 40, 4);

STRUCT(mkGemmAllReduceArgs_t, 576, tune);
FIELD(mkGemmAllReduceArgs_t, structSize, 0, 4);
FIELD(mkGemmAllReduceArgs_t, structId, 4, 4);
FIELD(mkGemmAllReduceArgs_t, a, 8, 128);
FIELD(mkGemmAllReduceArgs_t, b, 136, 128);
FIELD(mkGemmAllReduceArgs_t, c, 264, 128);
FIELD(mkGemmAllReduceArgs_t, bias, 392, 128);
FIELD(mkGemmAllReduceArgs_t, alpha, 520, 8);
FIELD(mkGemmAllReduceArgs_t, beta, 528, 8);
FIELD(mkGemmAllReduceArgs_t, bLayout, 536, 4);
FIELD(mkGemmAllReduceArgs_t, activation, 540, 4);
FIELD(mkGemmAllReduceArgs_t, wireDtypePlus1, 544, 4);
FIELD(mkGemmAllReduceArgs_t, reserved0, 548, 4);
FIELD(mkGemmAllReduceArgs_t, scaleA, 552, 8);
FIELD(mkGemmAllReduceArgs_t, scaleB, 560, 8);
FIELD(mkGemmAllReduceArgs_t, tune, 568, 8);

STRUCT(mkGemmReduceScatterArgs_t, 576, tune);
FIELD(mkGemmReduceScatterArgs_t, structSize, 0, 4);
FIELD(mkGemmReduceScatterArgs_t, structId, 4, 4);
FIELD(mkGemmReduceScatterArgs_t, a, 8, 128);
FIELD(mkGemmReduceScatterArgs_t, b, 136, 128);
FIELD(mkGemmReduceScatterArgs_t, c, 264, 128);
FIELD(mkGemmReduceScatterArgs_t, bias, 392, 128);
FIELD(mkGemmReduceScatterArgs_t, alpha, 520, 8);
FIELD(mkGemmReduceScatterArgs_t, beta, 528, 8);
FIELD(mkGemmReduceScatterArgs_t, bLayout, 536, 4);
FIELD(mkGemmReduceScatterArgs_t, activation, 540, 4);
FIELD(mkGemmReduceScatterArgs_t, wireDtypePlus1, 544, 4);
FIELD(mkGemmReduceScatterArgs_t, reserved0, 548, 4);
FIELD(mkGemmReduceScatterArgs_t, scaleA, 552, 8);
FIELD(mkGemmReduceScatterArgs_t, scaleB, 560, 8);
FIELD(mkGemmReduceScatterArgs_t, tune, 568, 8);

STRUCT(mkAllGatherGemmArgs_t, 704, tune);
FIELD(mkAllGatherGemmArgs_t, structSize, 0, 4);
FIELD(mkAllGatherGemmArgs_t, structId, 4, 4);
FIELD(mkAllGatherGemmArgs_t, a, 8, 128);
FIELD(mkAllGatherGemmArgs_t, b, 136, 128);
FIELD(mkAllGatherGemmArgs_t, c, 264, 128);
FIELD(mkAllGatherGemmArgs_t, gathered, 392, 128);
FIELD(mkAllGatherGemmArgs_t, bias, 520, 128);
FIELD(mkAllGatherGemmArgs_t, alpha, 648, 8);
FIELD(mkAllGatherGemmArgs_t, beta, 656, 8);
FIELD(mkAllGatherGemmArgs_t, bLayout, 664, 4);
FIELD(mkAllGatherGemmArgs_t, activation, 668, 4);
FIELD(mkAllGatherGemmArgs_t, reserved0, 672, 4);
FIELD(mkAllGatherGemmArgs_t, reserved1, 676, 4);
FIELD(mkAllGatherGemmArgs_t, scaleA, 680, 8);
FIELD(mkAllGatherGemmArgs_t, scaleB, 688, 8);
FIELD(mkAllGatherGemmArgs_t, tune, 696, 8);

STRUCT(mkTransportInfo_t, 56, devicePosted);
FIELD(mkTransportInfo_t, structSize, 0, 4);
FIELD(mkTransportInfo_t, structId, 4, 4);
FIELD(mkTransportInfo_t, name, 8, 8);
FIELD(mkTransportInfo_t, path, 16, 8);
FIELD(mkTransportInfo_t, status, 24, 8);
FIELD(mkTransportInfo_t, abiMajor, 32, 4);
FIELD(mkTransportInfo_t, abiMinor, 36, 4);
FIELD(mkTransportInfo_t, devices, 40, 4);
FIELD(mkTransportInfo_t, contract, 44, 4);
FIELD(mkTransportInfo_t, immediateBits, 48, 4);
FIELD(mkTransportInfo_t, devicePosted, 52, 4);

STRUCT(mkParamInfo_t, 56, help);
FIELD(mkParamInfo_t, structSize, 0, 4);
FIELD(mkParamInfo_t, structId, 4, 4);
FIELD(mkParamInfo_t, name, 8, 8);
FIELD(mkParamInfo_t, type, 16, 8);
FIELD(mkParamInfo_t, defaultValue, 24, 8);
FIELD(mkParamInfo_t, value, 32, 8);
FIELD(mkParamInfo_t, source, 40, 8);
FIELD(mkParamInfo_t, help, 48, 8);

/* ---- mkernel/transport.h ---- */

VALUE(MK_TRANSPORT_ABI_MAJOR, 1);
VALUE(MK_CONTRACT_ORDERED, 1);
VALUE(MK_CONTRACT_COMPLETION, 2);
VALUE(MK_TRANSPORT_ADDRESS_BYTES, 256);
VALUE(MK_TRANSPORT_KEY_BYTES, 64);
VALUE(MK_MEMORY_KIND_HOST, 1);
VALUE(MK_MEMORY_KIND_CUDA, 2);
VALUE(MK_EVENT_SENT, 1);
VALUE(MK_EVENT_ARRIVED, 2);
VALUE(MK_EVENT_ERROR, 3);
VALUE(MK_EVENT_RETIRED, 4);

STRUCT(mkTransportHost_t, 32, param);
FIELD(mkTransportHost_t, structSize, 0, 4);
FIELD(mkTransportHost_t, abiMajor, 4, 4);
FIELD(mkTransportHost_t, abiMinor, 8, 4);
FIELD(mkTransportHost_t, reserved, 12, 4);
FIELD(mkTransportHost_t, log, 16, 8);
FIELD(mkTransportHost_t, param, 24, 8);

STRUCT(mkTransportDevice_t, 96, bytesPerSecond);
FIELD(mkTransportDevice_t, structSize, 0, 4);
FIELD(mkTransportDevice_t, name, 4, 64);
FIELD(mkTransportDevice_t, pciBusId, 68, 16);
FIELD(mkTransportDevice_t, bytesPerSecond, 88, 8);

STRUCT(mkTransportProperties_t, 32, maxBytes);
FIELD(mkTransportProperties_t, structSize, 0, 4);
FIELD(mkTransportProperties_t, contract, 4, 4);
FIELD(mkTransportProperties_t, immediateBits, 8, 4);
FIELD(mkTransportProperties_t, maxBatch, 12, 4);
FIELD(mkTransportProperties_t, maxOutstanding, 16, 4);
FIELD(mkTransportProperties_t, devicePosted, 20, 4);
FIELD(mkTransportProperties_t, maxBytes, 24, 8);

STRUCT(mkTransportMemory_t, 40, fdOffset);
FIELD(mkTransportMemory_t, structSize, 0, 4);
FIELD(mkTransportMemory_t, kind, 4, 4);
FIELD(mkTransportMemory_t, address, 8, 8);
FIELD(mkTransportMemory_t, bytes, 16, 8);
FIELD(mkTransportMemory_t, fd, 24, 4);
FIELD(mkTransportMemory_t, reserved, 28, 4);
FIELD(mkTransportMemory_t, fdOffset, 32, 8);

STRUCT(mkTransportWrite_t, 80, cookie);
FIELD(mkTransportWrite_t, source, 0, 8);
FIELD(mkTransportWrite_t, localMemory, 8, 8);
FIELD(mkTransportWrite_t, remoteMemory, 16, 8);
FIELD(mkTransportWrite_t, remoteOffset, 24, 8);
FIELD(mkTransportWrite_t, bytes, 32, 8);
FIELD(mkTransportWrite_t, flagMemory, 40, 8);
FIELD(mkTransportWrite_t, flagOffset, 48, 8);
FIELD(mkTransportWrite_t, flagValue, 56, 8);
FIELD(mkTransportWrite_t, immediate, 64, 4);
FIELD(mkTransportWrite_t, queue, 68, 4);
FIELD(mkTransportWrite_t, cookie, 72, 8);

STRUCT(mkTransportEvent_t, 24, cookie);
FIELD(mkTransportEvent_t, kind, 0, 4);
FIELD(mkTransportEvent_t, peer, 4, 4);
FIELD(mkTransportEvent_t, status, 8, 4);
FIELD(mkTransportEvent_t, immediate, 12, 4);
FIELD(mkTransportEvent_t, cookie, 16, 8);

STRUCT(mkTransport_t, 160, memoryDescriptor);
FIELD(mkTransport_t, structSize, 0, 4);
FIELD(mkTransport_t, abiMajor, 4, 4);
FIELD(mkTransport_t, abiMinor, 8, 4);
FIELD(mkTransport_t, reserved, 12, 4);
FIELD(mkTransport_t, name, 16, 8);
FIELD(mkTransport_t, init, 24, 8);
FIELD(mkTransport_t, fini, 32, 8);
FIELD(mkTransport_t, lastError, 40, 8);
FIELD(mkTransport_t, deviceCount, 48, 8);
FIELD(mkTransport_t, deviceInfo, 56, 8);
FIELD(mkTransport_t, properties, 64, 8);
FIELD(mkTransport_t, open, 72, 8);
FIELD(mkTransport_t, connect, 80, 8);
FIELD(mkTransport_t, registerMemory, 88, 8);
FIELD(mkTransport_t, deregisterMemory, 96, 8);
FIELD(mkTransport_t, importMemory, 104, 8);
FIELD(mkTransport_t, releaseMemory, 112, 8);
FIELD(mkTransport_t, post, 120, 8);
FIELD(mkTransport_t, poll, 128, 8);
FIELD(mkTransport_t, close, 136, 8);
FIELD(mkTransport_t, queueDescriptor, 144, 8);
FIELD(mkTransport_t, memoryDescriptor, 152, 8);

/* ---- mkernel/queue.h ---- */

VALUE(MK_COMMAND_WORDS, 6);
VALUE(MK_COMMAND_BYTES, 48);
VALUE(MK_COMMAND_OP_WRITE, 1);
VALUE(MK_MEMORY_HEAP, 0);
VALUE(MK_SLOT_BITS, 20);

STRUCT(mkCommand_t, 48, epoch);
FIELD(mkCommand_t, header, 0, 8);
FIELD(mkCommand_t, source, 8, 8);
FIELD(mkCommand_t, destination, 16, 8);
FIELD(mkCommand_t, bytes, 24, 8);
FIELD(mkCommand_t, slot, 32, 8);
FIELD(mkCommand_t, epoch, 40, 8);

VALUE(MK_QUEUE_KIND_MLX5, 1);
VALUE(MK_QUEUE_MLX5_VERSION, 1);

STRUCT(mkQueueDescriptor_t, 64, maxBytes);
FIELD(mkQueueDescriptor_t, structSize, 0, 4);
FIELD(mkQueueDescriptor_t, kind, 4, 4);
FIELD(mkQueueDescriptor_t, version, 8, 4);
FIELD(mkQueueDescriptor_t, number, 12, 4);
FIELD(mkQueueDescriptor_t, entries, 16, 8);
FIELD(mkQueueDescriptor_t, record, 24, 8);
FIELD(mkQueueDescriptor_t, doorbell, 32, 8);
FIELD(mkQueueDescriptor_t, entryCount, 40, 4);
FIELD(mkQueueDescriptor_t, immediates, 44, 4);
FIELD(mkQueueDescriptor_t, firstIndex, 48, 8);
FIELD(mkQueueDescriptor_t, maxBytes, 56, 8);

STRUCT(mkQueueMemory_t, 24, bytes);
FIELD(mkQueueMemory_t, structSize, 0, 4);
FIELD(mkQueueMemory_t, key, 4, 4);
FIELD(mkQueueMemory_t, address, 8, 8);
FIELD(mkQueueMemory_t, bytes, 16, 8);
