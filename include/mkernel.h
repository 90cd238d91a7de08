/* libmkernel: fused multi-GPU, multi-node matrix kernels behind a plain C interface.
 *
 * This header compiles alone as C99 and as C++ and needs no CUDA header.  ABI.md states what may change between
 * versions.  In short: symbols are versioned, structures only grow at their end, and every structure starts with its
 * size and an identifier, so that old callers and new libraries understand each other.
 *
 * Structures.  Initialise with MK_INIT(&value, MK_ID_...), then fill in what differs from the default.  In every structure,
 * zero (or NULL) means "default" for every field.
 *
 * Threads.  A communicator is used by one thread at a time, unless a function says "any thread".  Different
 * communicators may be used by different threads at once.  After fork() the child may not use the parent's
 * communicators: every call returns mkErrorInvalidUsage there.
 *
 * Errors.  Every function returns mkResult_t and none throws, exits or aborts.  mkGetLastError gives the text of the
 * last failure: it names the argument, its value and what would have been legal.
 */
#ifndef MKERNEL_H_
#define MKERNEL_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define MK_EXPORT __attribute__((visibility("default")))
#else
#define MK_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MK_MAJOR 0
#define MK_MINOR 1
#define MK_PATCH 0
#define MK_VERSION_CODE (MK_MAJOR * 10000 + MK_MINOR * 100 + MK_PATCH)

/* ---- Results ------------------------------------------------------------------------------------------------- */

/* 0 to 8 have the meaning of NCCL's codes of the same value; libmkernel's own start at 64. */
typedef enum {
  mkSuccess = 0,
  mkErrorUnhandledCuda = 1,
  mkErrorSystem = 2,          /* the operating system refused something: memory, a socket, a thread */
  mkErrorInternal = 3,        /* a fault of the library: please report it */
  mkErrorInvalidArgument = 4, /* one argument of this call is wrong on its own */
  mkErrorInvalidUsage = 5,    /* arguments differ between ranks, or a call in the wrong state or order */
  mkErrorRemote = 6,          /* another rank failed, left or died; the text names it */
  mkErrorInProgress = 7,      /* asynchronous work has not finished */
  mkErrorTimeout = 8,         /* no progress within the deadline; the text names operation, epoch, stage and rank */
  mkErrorVersion = 64,        /* a structure or a peer is of a version this library does not understand */
  mkErrorNotSupported = 65,   /* legal, but not implemented in this version or on this platform */
  mkErrorNotReserved = 66,    /* the symmetric heap is too small: call mkCommReserve with mkOpWorkspaceSize's value */
  mkErrorNotRegistered = 67, /* memory that must lie in a window does not, or cannot be registered; the text says why */
  mkErrorTransport = 68,     /* no transport, or the network failed */
  mkErrorRevoked = 69,       /* the communicator has been revoked or aborted by this rank */
  mkErrorCapture = 70        /* the call is not legal during stream capture */
} mkResult_t;

/* ---- Types --------------------------------------------------------------------------------------------------- */

typedef struct mkComm* mkComm_t;
typedef struct mkWindow* mkWindow_t;
/* The same type as cudaStream_t and CUstream, so those can be passed without a cast; NULL is the legacy default stream.  On
 * the CPU platform a stream comes from mkCpuStreamCreate; there the NULL stream runs an operation to its end before the call
 * returns. */
typedef struct CUstream_st* mkStream_t;

/* Values equal ncclDataType_t's; libmkernel's own start at 64. */
typedef enum { mkInt8 = 0, mkFloat16 = 6, mkFloat32 = 7, mkFloat64 = 8, mkBfloat16 = 9 } mkDataType_t;

#define MK_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[MK_UNIQUE_ID_BYTES];
} mkUniqueId_t;

/* Identifiers of structures (field structId). */
#define MK_ID_CONFIG 0x6d6b0001u
#define MK_ID_COMM_INFO 0x6d6b0002u
#define MK_ID_BUILD_INFO 0x6d6b0003u
#define MK_ID_TRANSPORT_INFO 0x6d6b0004u
#define MK_ID_PARAM_INFO 0x6d6b0005u
#define MK_ID_TUNE 0x6d6b0006u
#define MK_ID_GEMM_ALL_REDUCE_ARGS 0x6d6b0010u
#define MK_ID_GEMM_REDUCE_SCATTER_ARGS 0x6d6b0011u
#define MK_ID_ALL_GATHER_GEMM_ARGS 0x6d6b0012u

/* MK_INIT(&config, MK_ID_CONFIG): sets every field of a structure to its default. */
#define MK_INIT(pointer, id) mkInitStruct((pointer), sizeof(*(pointer)), (id))
static inline void mkInitStruct(void* structure, size_t size, uint32_t id) {
  uint32_t header[2];
  memset(structure, 0, size);
  header[0] = (uint32_t)size;
  header[1] = id;
  memcpy(structure, header, sizeof(header));
}

#define MK_MAX_DIMS 5
/* A tensor, row-major.  Either `data` points at its first element, or `window` is a registered window and `offset` the
 * byte offset of the first element in it (the same on all ranks); never both.  Nothing is inferred from a pointer.
 * Strides are in elements; all zero means packed.  The last stride must be 1; every other stride, the base address
 * and the offset must be multiples of 16 bytes.  ndim 0 means "absent" where a tensor is optional.  This structure is
 * embedded in others and never changes. */
typedef struct {
  void* data;
  mkWindow_t window;
  uint64_t offset;
  uint32_t dtype; /* mkDataType_t */
  uint32_t ndim;
  int64_t dims[MK_MAX_DIMS];
  int64_t strides[MK_MAX_DIMS];
  uint64_t reserved[2]; /* zero */
} mkTensor_t;

/* ---- Version, build, errors ------------------------------------------------------------------------------------ */

/* *version = major*10000 + minor*100 + patch.  Never fails but for NULL.  A loader calls this first.  Any thread. */
MK_EXPORT mkResult_t mkGetVersion(int* version);

typedef struct {
  uint32_t structSize, structId; /* MK_ID_BUILD_INFO; set both before the call */
  uint32_t version;
  uint32_t cudaVersion;       /* of the toolkit it was built with, as CUDART_VERSION; 0: built without CUDA */
  const char* revision;       /* source revision, or "unknown" */
  const char* compiler;       /* compiler and version */
  const char* platforms;      /* comma-separated: "cpu", "cpu,cuda" */
  const char* cudaArchs;      /* comma-separated, e.g. "90a"; "" without CUDA */
  uint32_t transportAbiMajor; /* the plugin table understood: mkTransport_v<major> */
  uint32_t transportAbiMinor;
} mkBuildInfo_t;
/* What this library was built from.  Strings live as long as the library.  Any thread. */
MK_EXPORT mkResult_t mkGetBuildInfo(mkBuildInfo_t* info);

/* A short constant text for a code; never NULL.  Any thread. */
MK_EXPORT const char* mkGetErrorString(mkResult_t result);
/* The text of a failure: if comm is not NULL, of the error that made the communicator unusable (see
 * mkCommGetAsyncError), else of the calling thread's last call that failed.  Never NULL; "" if there was none.  Valid until
 * the thread's next call into the library.  Any thread. */
MK_EXPORT const char* mkGetLastError(mkComm_t comm);

/* ---- Communicators --------------------------------------------------------------------------------------------- */

typedef struct {
  uint32_t structSize, structId; /* MK_ID_CONFIG */
  const char* platform; /* "cpu" or "cuda"; NULL: MKERNEL_PLATFORM, else cuda where a usable GPU is, else cpu */
  const char* hostId; /* node identity: ranks with equal identities form a node; NULL: MKERNEL_HOSTID, else the host */
  const char* transport;  /* network plugin; never falls back; NULL: MKERNEL_NET, else the best that finds a device */
  uint64_t heapBytes;     /* symmetric heap reserved at initialisation; 0: MKERNEL_HEAP_BYTES */
  uint32_t timeoutMs;     /* no progress for this long inside an operation is an error; 0: MKERNEL_TIMEOUT_MS (30 s) */
  uint32_t initTimeoutMs; /* all ranks must have come and be ready by then; 0: MKERNEL_INIT_TIMEOUT_MS (120 s) */
  uint32_t teardownTimeoutMs; /* how long destroy and abort wait for peers; 0: MKERNEL_TEARDOWN_TIMEOUT_MS (5 s) */
  uint32_t maxSMs;            /* SMs (CPU platform: agents) an operation may occupy, or it is refused; 0: all */
} mkConfig_t;

/* Makes the identifier of a new communicator, to be carried to all ranks by the caller.  Opens a listening socket in
 * this process, where the ranks meet; this process must live as long as the communicator.  Any thread. */
MK_EXPORT mkResult_t mkGetUniqueId(mkUniqueId_t* id);

/* Collective: joins `nranks` ranks; one thread or process each.  Returns on every rank with success, or on every rank
 * with an error that names the offender, within the initialisation deadline.  *comm is NULL after an error. */
MK_EXPORT mkResult_t mkCommInitRank(mkComm_t* comm, int nranks, mkUniqueId_t id, int rank);
/* The same with settings; config may be NULL.  Settings that must agree between ranks are compared. */
MK_EXPORT mkResult_t mkCommInitRankConfig(mkComm_t* comm, int nranks, mkUniqueId_t id, int rank,
                                          const mkConfig_t* config);
/* Gathers `bytes` bytes from every rank in rank order: recv has nranks*bytes bytes.  Returns 0 on success. */
typedef int (*mkAllgatherFn)(const void* send, void* recv, size_t bytes, void* user);
/* The same over the caller's own allgather (MPI, torch.distributed), which is called once, by the calling thread. */
MK_EXPORT mkResult_t mkCommInitAllgather(mkComm_t* comm, int nranks, int rank, mkAllgatherFn fn, void* user,
                                         const mkConfig_t* config);

#define MK_NET_PATH_DIRECT 1u /* the network reads and writes the memory the agents use */
#define MK_NET_PATH_STAGED 2u /* it cannot on some rank (or MKERNEL_NET_STAGING=1): by copies in pinned host memory */

typedef struct {
  uint32_t structSize, structId; /* MK_ID_COMM_INFO; set both before the call */
  int32_t nranks, rank;
  int32_t nnodes, node;            /* nodes are numbered by their lowest rank */
  int32_t ranksPerNode, localRank; /* local ranks by ascending rank */
  int32_t device;                  /* CUDA ordinal; -1 on the CPU platform */
  int32_t smCount;                 /* SMs; agents on the CPU platform */
  uint64_t heapBytes;              /* reserved workspace, as for mkCommReserve */
  uint64_t nextEpoch;              /* epoch of the next operation, if no graph is replayed meanwhile */
  uint64_t netBytesSent;           /* payload bytes handed to the network so far */
  uint64_t netMessagesSent;        /* messages with payload, i.e. chunks, so far */
  uint64_t netBatches;             /* submissions to the network so far; one carries up to eight commands */
  const char* platform;            /* "cpu" or "cuda" */
  const char* transport;           /* "" with one node */
  uint32_t netPath; /* MK_NET_PATH_...; 0 with one node.  MKERNEL_DEBUG=INFO says why, and how memory is registered */
  uint32_t reserved0;
} mkCommInfo_t;
/* Strings live as long as the communicator.  Any thread. */
MK_EXPORT mkResult_t mkCommQuery(mkComm_t comm, mkCommInfo_t* info);

/* *result: mkSuccess, or the error that made the communicator unusable (mkGetLastError(comm) has the text).  Any
 * thread. */
MK_EXPORT mkResult_t mkCommGetAsyncError(mkComm_t comm, mkResult_t* result);
/* Stops everything on all ranks and frees nothing: kernels leave, later operations return mkErrorRevoked here and
 * mkErrorRemote naming this rank elsewhere.  Returns at once.  Any thread. */
MK_EXPORT mkResult_t mkCommRevoke(mkComm_t comm);
/* Revokes, waits until nothing can be written to this rank's memory any more, and frees.  Needs no peer's cooperation
 * beyond its library threads; waits at most the teardown deadline.  What a peer has not let go of stays allocated, and
 * mkErrorRemote names that peer; the handle is gone all the same. */
MK_EXPORT mkResult_t mkCommAbort(mkComm_t comm);
/* Collective: waits until every operation of every rank has finished. */
MK_EXPORT mkResult_t mkCommFinalize(mkComm_t comm);
/* Frees the communicator.  Local: peers need not call anything, and may be dead; the operations launched must have
 * finished (otherwise: mkCommAbort).  Waits at most the teardown deadline for peers to let go of this rank's memory. */
MK_EXPORT mkResult_t mkCommDestroy(mkComm_t comm);

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

/* Memory that can be registered as a window on every platform.  Local, not collective.  CUDA platform: memory of the
 * calling thread's current device; CPU platform: shared memory; the platform is chosen as for a communicator without
 * configuration.  Any thread. */
MK_EXPORT mkResult_t mkMemAlloc(void** ptr, size_t bytes);
/* NULL is legal.  mkErrorInvalidUsage while a window covers it.  Any thread. */
MK_EXPORT mkResult_t mkMemFree(void* ptr);
/* Collective, same order and same size on all ranks: makes [ptr, ptr+bytes) accessible to the node's other ranks.
 * CPU platform: memory of mkMemAlloc.  CUDA platform: memory of the communicator's device, of mkMemAlloc, of cudaMalloc (any
 * part of an allocation), or mapped by cuMemMap if it can be exported by descriptor; not managed memory, nor that of a
 * stream-ordered pool.  It must not be freed while the window exists; for memory of mkMemAlloc that is checked.
 * Every rank gets success or every rank gets an error; mkErrorNotRegistered names the rank and the cause. */
MK_EXPORT mkResult_t mkCommWindowRegister(mkComm_t comm, void* ptr, size_t bytes, mkWindow_t* window);
/* Collective.  No operation may be in flight. */
MK_EXPORT mkResult_t mkCommWindowDeregister(mkComm_t comm, mkWindow_t window);
/* Collective: grows the symmetric heap to at least `bytes` of workspace (see mkOpWorkspaceSize) on every rank.  It grows
 * in place, so captured graphs stay valid.  Less than what is reserved: success, nothing happens. */
MK_EXPORT mkResult_t mkCommReserve(mkComm_t comm, size_t bytes);

/* ---- Operations ------------------------------------------------------------------------------------------------ */

/* Values for bLayout: how B is stored. */
#define MK_LAYOUT_KN 1u /* (K, N), the default */
#define MK_LAYOUT_NK 2u /* (N, K) */
/* Values for activation: what is applied, in fp32 and before it is rounded, to an element that is otherwise finished. */
#define MK_ACTIVATION_NONE 1u
#define MK_ACTIVATION_RELU 2u /* max(x, 0) */
#define MK_ACTIVATION_GELU 3u /* x/2 * (1 + erf(x / sqrt 2)): not the approximation by tanh */
#define MK_ACTIVATION_SILU 4u /* x / (1 + exp(-x)) */
/* Values for mkTune_t.exchange: how node sums travel between more than one node. */
#define MK_EXCHANGE_SWAP 1u /* every node sends each chunk to every other, one hop; default for two nodes */
#define MK_EXCHANGE_HOME 2u /* each chunk is summed by a home node, which sends the result; default beyond two */
/* AllGather+GEMM: how rows of A travel between more than one node.  The same bytes per network card. */
#define MK_EXCHANGE_DIRECT 3u /* each rank sends its rows to one node after the other; default */
#define MK_EXCHANGE_RING 4u   /* each rank sends to the next node only: its rows, then what it has received */

/* Choices for one operation.  All but the numbers of agents, and the tiles of AllGather+GEMM, must be the same on all ranks
 * (checked).  mkTuneQuery fills in what was chosen. */
typedef struct {
  uint32_t structSize, structId; /* MK_ID_TUNE */
  uint32_t tileM, tileN;         /* shape of a tile of the result; multiples of 16, up to 256 */
  uint32_t chunkTiles;           /* tiles per network chunk, 1 to 65536 */
  uint32_t exchange;             /* MK_EXCHANGE_...; GEMM+ReduceScatter: 0 */
  uint32_t computeAgents;        /* blocks that compute (CPU platform: fibres) */
  uint32_t receiveAgents;        /* agents that sum and pass on what arrives from other nodes; AllGather+GEMM: that
                                  * store rows at local ranks */
  uint32_t minSMs;               /* out only: SMs that always suffice for the operation to complete */
  uint32_t reserved0;
  uint32_t chunkRows; /* AllGather+GEMM, in place of chunkTiles: rows of A per chunk, 1 to 2^30 */
} mkTune_t;

/* C = activation(alpha * sum over ranks of A*B + beta * C + bias), on every rank, the same bits on every rank.
 *   a: (M, Kr) of this rank, b: (Kr, N) or (N, Kr), c: (M, N).  M, N and the dtypes are the same on all ranks; Kr may
 *   differ from rank to rank and may be 0.  M, N may be 0.  N (and Kr where it is a row length) in multiples of 16
 *   bytes.  a and b: both bf16 or both fp16; c: the same type or fp32.
 *   c in a window (same window and offset on all ranks): peers store into it directly.  Otherwise it is staged in the
 *   symmetric heap.  C must not overlap a, b or bias.  The bias, and with beta not 0 the old C, must be the same on all
 *   ranks: which rank adds them to an element is not defined.
 * Products and sums are fp32; what travels between ranks is rounded once to the wire type. */
typedef struct {
  uint32_t structSize, structId; /* MK_ID_GEMM_ALL_REDUCE_ARGS */
  mkTensor_t a, b, c;
  mkTensor_t bias;         /* (N), dtype of c or fp32; added once; optional */
  const float* alpha;      /* host memory, read during the call; NULL: 1 */
  const float* beta;       /* likewise; NULL: 0, and then the old C is never read */
  uint32_t bLayout;        /* MK_LAYOUT_...; 0: (K, N) */
  uint32_t activation;     /* MK_ACTIVATION_...; 0: none */
  uint32_t wireDtypePlus1; /* 1 + mkDataType_t of what travels; 0: the dtype of c.  fp32 or c's dtype */
  uint32_t reserved0;
  const float* scaleA; /* for 8-bit inputs; not supported yet: NULL */
  const float* scaleB;
  const mkTune_t* tune; /* NULL: automatic */
} mkGemmAllReduceArgs_t;

/* Enqueues one GEMM+AllReduce on the stream.  Collective: all ranks, same order, same arguments (checked on the device,
 * before a byte is exchanged; a difference is mkErrorInvalidUsage on every rank, asynchronously).  Never allocates.
 * mkErrorNotReserved if the heap is too small.  a, b, bias and c must stay valid until the operation has finished on the
 * stream.
 *   CUDA platform: returns at once; a, b, bias and c are memory of the communicator's device.  Operations run in the order of
 * the calls, also on different streams: a launch on another stream than the last one waits for what is on that, which must
 * therefore still exist then.  May be captured into a graph, and replayed any number of times, mixed with other launches, in the
 * same order on all ranks; replays on several streams, and replays beside launches, are ordered by the caller, who also
 * synchronises their streams before mkCommFinalize, mkCommDestroy and mkCommAbort: replays that are only queued are not seen,
 * and must not begin after the communicator is gone.  cudaStreamPerThread is one stream only if one thread launches.  A failure is
 * seen by mkCommGetAsyncError after the stream has been synchronised.
 *   CPU platform: launching on a second stream while an operation on another is unfinished is mkErrorInvalidUsage. */
MK_EXPORT mkResult_t mkGemmAllReduce(mkComm_t comm, const mkGemmAllReduceArgs_t* args, mkStream_t stream);

/* C = activation(alpha * rows of this rank of the sum over ranks of A*B + beta * C + bias).
 *   a: (M, Kr) of this rank, b: (Kr, N) or (N, Kr).  Of the W ranks, rank g gets the rows from min(M, g*H) up to min(M, (g+1)*H)
 *   with H = M/W, rounded up: the last ranks may get fewer, or none.  c: those rows x N.  M, N and the dtypes are the same on all
 *   ranks; Kr may differ from rank to rank and may be 0.  M, N may be 0.  N (and Kr where it is a row length) in multiples of
 *   16 bytes.  a and b: both bf16 or both fp16; c: the same type or fp32.
 *   Only this rank writes its c, so it may lie anywhere; bias and the old C are this rank's own.  C must not overlap a, b or bias.
 * Products and sums are fp32; what travels between ranks is rounded once to the wire type.  The same arguments on the same
 * communicator give the same bits. */
typedef struct {
  uint32_t structSize, structId; /* MK_ID_GEMM_REDUCE_SCATTER_ARGS */
  mkTensor_t a, b, c;
  mkTensor_t bias;         /* (N), dtype of c or fp32; added once; optional, but on all ranks or on none */
  const float* alpha;      /* host memory, read during the call; NULL: 1 */
  const float* beta;       /* likewise; NULL: 0, and then the old C is never read */
  uint32_t bLayout;        /* MK_LAYOUT_...; 0: (K, N) */
  uint32_t activation;     /* MK_ACTIVATION_...; 0: none */
  uint32_t wireDtypePlus1; /* 1 + mkDataType_t of what travels; 0: the dtype of c.  fp32 or c's dtype */
  uint32_t reserved0;
  const float* scaleA; /* for 8-bit inputs; not supported yet: NULL */
  const float* scaleB;
  const mkTune_t* tune; /* NULL: automatic */
} mkGemmReduceScatterArgs_t;

/* Enqueues one GEMM+ReduceScatter on the stream, as mkGemmAllReduce does: the same rules for ranks, streams, memory and errors. */
MK_EXPORT mkResult_t mkGemmReduceScatter(mkComm_t comm, const mkGemmReduceScatterArgs_t* args, mkStream_t stream);

/* C = activation(alpha * A*B + beta * C + bias), where A is gathered from all ranks, and B and C are each rank's own: the product
 * of A with this rank's N columns.
 *   a: this rank's rows of A, (Mg, K); b: (K, N) or (N, K); c: (M, N).  Of W ranks, rank g has rows g*h to (g+1)*h of A,
 *   where h = M / W rounded up, or fewer, or none, where M ends: Mg = min(M, (g+1)*h) - min(M, g*h).  M, the rows of c, K and
 *   the dtype of a are the same on all ranks; N, bLayout, the dtype of c, alpha, beta and bias may differ.  M, N, K may be 0.
 *   K, and N where it is a row length, in multiples of 16 bytes.  a and b: both bf16 or both fp16; c: the same type or fp32.
 *   gathered, optional: (M, K), dtype of a: the whole A, for what comes after.  In a window (same window and offset on all
 *   ranks, or none in a window): peers store into it directly, and the heap holds only what comes from other nodes.
 *   Otherwise it is copied from the symmetric heap, and each rank may have it or not.  `a` may be this rank's rows of
 *   `gathered`, exactly, with the same stride.
 * Nothing else may overlap.  Products and sums are fp32; rows of A travel as they are. */
typedef struct {
  uint32_t structSize, structId; /* MK_ID_ALL_GATHER_GEMM_ARGS */
  mkTensor_t a, b, c;
  mkTensor_t gathered;
  mkTensor_t bias;     /* (N), dtype of c or fp32; optional */
  const float* alpha;  /* host memory, read during the call; NULL: 1 */
  const float* beta;   /* likewise; NULL: 0, and then the old C is never read */
  uint32_t bLayout;    /* MK_LAYOUT_...; 0: (K, N) */
  uint32_t activation; /* MK_ACTIVATION_...; 0: none */
  uint32_t reserved0, reserved1;
  const float* scaleA; /* for 8-bit inputs; not supported yet: NULL */
  const float* scaleB;
  const mkTune_t* tune; /* NULL: automatic; tiles may differ between ranks */
} mkAllGatherGemmArgs_t;

/* Enqueues one AllGather+GEMM on the stream.  Everything said of mkGemmAllReduce holds, of a, b, bias, c and gathered; once
 * it has finished on the stream, no rank reads this rank's a any more. */
MK_EXPORT mkResult_t mkAllGatherGemm(mkComm_t comm, const mkAllGatherGemmArgs_t* args, mkStream_t stream);

/* Operations as a number, for the three queries below; `args` is the operation's structure. */
#define MK_OP_GEMM_ALL_REDUCE 1
#define MK_OP_GEMM_REDUCE_SCATTER 2
#define MK_OP_ALL_GATHER_GEMM 3
/* Checks the arguments as the operation would, without launching: success, or the error and its text. */
MK_EXPORT mkResult_t mkOpCheck(mkComm_t comm, int op, const void* args);
/* *bytes: what mkCommReserve must be given for this operation. */
MK_EXPORT mkResult_t mkOpWorkspaceSize(mkComm_t comm, int op, const void* args, size_t* bytes);
/* Fills in what would be used for this operation. */
MK_EXPORT mkResult_t mkTuneQuery(mkComm_t comm, int op, const void* args, mkTune_t* tune);

/* ---- Streams of the CPU platform ------------------------------------------------------------------------------- */

/* A queue of operations run in order by a thread of its own.  Operations launched on it return at once.  Any thread. */
MK_EXPORT mkResult_t mkCpuStreamCreate(mkStream_t* stream);
/* Waits until the stream's operations have finished.  Success even if they failed: ask mkCommGetAsyncError. */
MK_EXPORT mkResult_t mkCpuStreamSynchronize(mkStream_t stream);
/* Waits, then frees.  NULL is legal. */
MK_EXPORT mkResult_t mkCpuStreamDestroy(mkStream_t stream);

/* ---- Transports and parameters --------------------------------------------------------------------------------- */

typedef struct {
  uint32_t structSize, structId; /* MK_ID_TRANSPORT_INFO; set both before the call */
  const char* name;
  const char* path;            /* file it was loaded from, or the last one tried */
  const char* status;          /* "" if usable; else why it was rejected: versions, or the loader's own words */
  uint32_t abiMajor, abiMinor; /* of the plugin's table; 0 if none was read */
  uint32_t devices;            /* devices found */
  uint32_t contract;           /* 1 ordered, 2 completion; 0 unknown */
  uint32_t immediateBits;      /* width of the notification an arriving write carries; 0: none */
  uint32_t devicePosted;       /* 1 if commands can be posted by the GPU itself */
} mkTransportInfo_t;
/* How many transports were found or tried.  Any thread. */
MK_EXPORT mkResult_t mkTransportCount(int* count);
/* index from 0.  Strings live as long as the library.  Any thread. */
MK_EXPORT mkResult_t mkTransportQuery(int index, mkTransportInfo_t* info);

typedef struct {
  uint32_t structSize, structId; /* MK_ID_PARAM_INFO; set both before the call */
  const char* name;              /* MKERNEL_... */
  const char* type;              /* "int", "float", "bool", "string" */
  const char* defaultValue;
  const char* value;  /* in force for new communicators without a configuration */
  const char* source; /* "default", "environment", or the configuration file's path */
  const char* help;
} mkParamInfo_t;
/* How many parameters there are.  Any thread. */
MK_EXPORT mkResult_t mkParamCount(int* count);
/* index from 0.  Strings live as long as the library.  Any thread. */
MK_EXPORT mkResult_t mkParamGet(int index, mkParamInfo_t* info);

#ifdef __cplusplus
}
#endif
#endif /* MKERNEL_H_ */
