// Arguments of the programs that run an operation; see options.h.
#include "options.h"

#include <getopt.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "mkernel.h"

namespace mk::perf {
namespace {

constexpr int64_t kLargest = int64_t{1} << 40;

float parseFloat(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const float value = std::strtof(text.c_str(), &end);
  if (end == text.c_str() || *end || !std::isfinite(value)) {
    throw UsageError(name + " " + text + ": a finite number is legal");
  }
  return value;
}

template <typename Value>
struct Choice {
  const char* name;
  Value value;
};

template <typename Value, size_t count>
Value parseChoice(const std::string& name, const std::string& text, const Choice<Value> (&choices)[count]) {
  std::string legal;
  for (const Choice<Value>& choice : choices) {
    if (text == choice.name) return choice.value;
    legal += (legal.empty() ? "" : ", ") + std::string(choice.name);
  }
  throw UsageError(name + " " + text + ": legal are " + legal);
}

constexpr Choice<Type> kInputTypes[] = {{"bf16", Type::bf16}, {"fp16", Type::fp16}};
constexpr Choice<uint32_t> kSumExchanges[] = {{"swap", MK_EXCHANGE_SWAP}, {"home", MK_EXCHANGE_HOME}};
constexpr Choice<uint32_t> kRowExchanges[] = {{"direct", MK_EXCHANGE_DIRECT}, {"ring", MK_EXCHANGE_RING}};
constexpr Choice<Gathered> kGathered[] = {
    {"none", Gathered::none}, {"memory", Gathered::memory}, {"window", Gathered::window}};
constexpr Choice<Corrupt> kCorruptions[] = {{"element", Corrupt::element},
                                            {"rank", Corrupt::rank},
                                            {"zero", Corrupt::zero},
                                            {"guard", Corrupt::guard},
                                            {"bytes", Corrupt::bytes}};

enum Long : int {
  optN = 256,
  optK,
  optOut,
  optWire,
  optTransB,
  optAlpha,
  optBeta,
  optBias,
  optWindow,
  optNodes,
  optPlatform,
  optTransport,
  optChunkTiles,
  optChunkRows,
  optGathered,
  optTileM,
  optTileN,
  optExchange,
  optJson,
  optCorrupt,
  optSuite,
  optLayers,
  optRounds,
  optLimit,
  optNic,
  optBaseline,
  optSweepSplit
};

constexpr option kLongOptions[] = {
    {"N", required_argument, nullptr, optN},
    {"K", required_argument, nullptr, optK},
    {"out", required_argument, nullptr, optOut},
    {"wire", required_argument, nullptr, optWire},
    {"trans-b", no_argument, nullptr, optTransB},
    {"alpha", required_argument, nullptr, optAlpha},
    {"beta", required_argument, nullptr, optBeta},
    {"bias", no_argument, nullptr, optBias},
    {"window", required_argument, nullptr, optWindow},
    {"nodes", required_argument, nullptr, optNodes},
    {"platform", required_argument, nullptr, optPlatform},
    {"transport", required_argument, nullptr, optTransport},
    {"chunk-tiles", required_argument, nullptr, optChunkTiles},
    {"chunk-rows", required_argument, nullptr, optChunkRows},
    {"gathered", required_argument, nullptr, optGathered},
    {"tile-m", required_argument, nullptr, optTileM},
    {"tile-n", required_argument, nullptr, optTileN},
    {"exchange", required_argument, nullptr, optExchange},
    {"json", required_argument, nullptr, optJson},
    {"corrupt", required_argument, nullptr, optCorrupt},
    {"suite", no_argument, nullptr, optSuite},
    {"layers", no_argument, nullptr, optLayers},
    {"rounds", required_argument, nullptr, optRounds},
    {"graph", required_argument, nullptr, 'G'},
    {"limit", required_argument, nullptr, optLimit},
    {"baseline", required_argument, nullptr, optBaseline},
    {"nic", required_argument, nullptr, optNic},
    {"sweep-split", optional_argument, nullptr, optSweepSplit},
    {"timeout", required_argument, nullptr, 'T'},
    {"help", no_argument, nullptr, 'h'},
    {nullptr, 0, nullptr, 0},
};

// Options that this operation has no use for.
bool foreign(Operation operation, int code) {
  switch (code) {
    case optWire:
    case optChunkTiles:
      return operation == Operation::allGatherGemm;
    case optExchange:
      return operation == Operation::gemmReduceScatter;
    case optWindow:
      return operation != Operation::gemmAllReduce;
    case optChunkRows:
    case optGathered:
      return operation != Operation::allGatherGemm;
    default:
      return false;
  }
}

std::string nameOf(int code) {
  for (const option* o = kLongOptions; o->name; ++o) {
    if (o->val == code) return std::string("--") + o->name;
  }
  return std::string("-") + static_cast<char>(code);
}

// A type that is C's or the wire's: the inputs' own or fp32.
Type outerType(const std::string& name, const std::string& text, Type same, const char* sameAs) {
  if (text.empty() || text == "same" || text == info(same).name) return same;
  if (text == "fp32") return Type::fp32;
  throw UsageError(name + " " + text + ": legal are same, " + info(same).name + " (" + sameAs + ") and fp32");
}

void requireOne(const std::string& name, const std::string& text) {
  if (text != "1") throw UsageError(name + " " + text + ": only 1 is legal, one rank per process (use mpirun -np)");
}

uint32_t parseTune(const std::string& name, const std::string& text) {
  return static_cast<uint32_t>(parseCount(name, text, 1, 1 << 20));
}

// Numbers with commas between them, in order.
std::vector<uint32_t> parseSplits(const std::string& name, const std::string& text) {
  std::vector<uint32_t> splits;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    if (item.empty()) {
      throw UsageError(name + std::string("=").append(text) + ": numbers with one comma between them are legal");
    }
    splits.push_back(parseTune(name, item));
    begin = end + 1;
  }
  std::sort(splits.begin(), splits.end());
  splits.erase(std::unique(splits.begin(), splits.end()), splits.end());
  return splits;
}

void checkTogether(const Options& o, int ranks) {
  if (o.mMax < o.mMin) {
    throw UsageError("-e " + std::to_string(o.mMax) + ": must be at least -b, " + std::to_string(o.mMin));
  }
  if (o.mMin == 0 && o.mMax > 0 && !o.mIncrement) throw UsageError("-b 0 does not grow by a factor: use -i");
  if (o.k % 8) throw UsageError("--K " + std::to_string(o.k) + ": a multiple of 8 is legal (rows of 16 bytes)");
  if (o.platform == "cpu" && (o.listed() || o.graph)) {
    throw UsageError("--suite, --layers and -G time GPUs: with --platform cpu they are not legal");
  }
  if (o.sweeps() && ranks == 1) {
    throw UsageError("--sweep-split: one rank communicates with nobody; at least 2 are legal");
  }
  if (o.suite && o.layers) throw UsageError("--suite and --layers: one of them is legal");
  if (o.graph > 1 && o.beta != 0) {
    throw UsageError("-G " + std::to_string(o.graph) +
                     " with --beta: -G 1 is legal, since C changes from launch to launch");
  }
  if (o.operation == Operation::gemmReduceScatter && o.corrupt == Corrupt::rank) {
    throw UsageError("--corrupt rank: no two ranks have the same rows");
  }
  if (o.nodes && ranks % o.nodes) {
    throw UsageError("--nodes " + std::to_string(o.nodes) + ": must divide the number of ranks, " +
                     std::to_string(ranks));
  }
}

}  // namespace

const char* programName(Operation operation) {
  switch (operation) {
    case Operation::gemmReduceScatter:
      return "mk_gemm_rs_perf";
    case Operation::allGatherGemm:
      return "mk_ag_gemm_perf";
    default:
      return "mk_gemm_ar_perf";
  }
}

int64_t parseCount(const std::string& name, const std::string& text, int64_t least, int64_t most) {
  const char* start = text.c_str();
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(start, &end, 10);
  int64_t unit = 1;
  switch (std::toupper(static_cast<unsigned char>(*end))) {
    case 'K':
      unit = 1 << 10;
      break;
    case 'M':
      unit = 1 << 20;
      break;
    case 'G':
      unit = 1 << 30;
      break;
    default:
      break;
  }
  const char* rest = unit > 1 ? end + 1 : end;
  if (end == start || *rest || errno || value < least || value > most / unit || value * unit < least) {
    throw UsageError(name + " " + text + ": a whole number from " + std::to_string(least) + " to " +
                     std::to_string(most) + " is legal, with K, M or G behind it for 2^10, 2^20, 2^30");
  }
  return value * unit;
}

std::vector<int64_t> Options::scan() const {
  std::vector<int64_t> values;
  for (int64_t m = mMin; m <= mMax; m = mIncrement ? m + mIncrement : m * mFactor) {
    values.push_back(m);
    if (m == 0 && !mIncrement) break;
  }
  return values;
}

Options parseOptions(int argc, char** argv, int ranks, Operation operation) {
  Options o;
  o.operation = operation;
  std::string out, wire;
  bool haveMax = false;
  opterr = 0;
  optind = 1;
  for (int code = 0; (code = getopt_long(argc, argv, ":b:e:f:i:w:n:c:d:g:t:G:T:h", kLongOptions, nullptr)) != -1;) {
    const std::string text = optarg ? optarg : "";
    const std::string name = nameOf(code);
    if (foreign(operation, code)) throw UsageError(name + ": not an option of this program (-h lists them)");
    switch (code) {
      case 'b':
        o.mMin = parseCount(name, text, 0, kLargest);
        break;
      case 'e':
        o.mMax = parseCount(name, text, 0, kLargest);
        haveMax = true;
        break;
      case 'f':
        o.mFactor = parseCount(name, text, 2, 1 << 20);
        break;
      case 'i':
        o.mIncrement = parseCount(name, text, 1, kLargest);
        break;
      case 'w':
        o.warmup = static_cast<int>(parseCount(name, text, 0, 1 << 20));
        break;
      case 'n':
        o.launches = static_cast<int>(parseCount(name, text, 1, 1 << 20));
        break;
      case 'c':
        o.check = static_cast<int>(parseCount(name, text, 0, 1 << 20));
        break;
      case 'd':
        o.in = parseChoice(name, text, kInputTypes);
        break;
      case 'g':
      case 't':
        requireOne(name, text);
        break;
      case 'T':
        o.timeoutSeconds = static_cast<int>(parseCount(name, text, 1, 1 << 20));
        break;
      case 'h':
        o.help = true;
        return o;
      case optN:
        o.n = parseCount(name, text, 0, kLargest);
        break;
      case optK:
        o.k = parseCount(name, text, 0, kLargest);
        break;
      case optOut:
        out = text;
        break;
      case optWire:
        wire = text;
        break;
      case optTransB:
        o.transB = true;
        break;
      case optAlpha:
        o.alpha = parseFloat(name, text);
        break;
      case optBeta:
        o.beta = parseFloat(name, text);
        break;
      case optBias:
        o.bias = true;
        break;
      case optWindow:
        o.window = static_cast<int>(parseCount(name, text, 0, 1));
        break;
      case optNodes:
        o.nodes = static_cast<int>(parseCount(name, text, 1, 1 << 20));
        break;
      case optPlatform:
        o.platform = text;
        break;
      case optTransport:
        o.transport = text;
        break;
      case optChunkTiles:
        o.chunkTiles = parseTune(name, text);
        break;
      case optChunkRows:
        o.chunkRows = parseTune(name, text);
        break;
      case optGathered:
        o.gathered = parseChoice(name, text, kGathered);
        break;
      case optTileM:
        o.tileM = parseTune(name, text);
        break;
      case optTileN:
        o.tileN = parseTune(name, text);
        break;
      case optExchange:
        o.exchange = operation == Operation::allGatherGemm ? parseChoice(name, text, kRowExchanges)
                                                           : parseChoice(name, text, kSumExchanges);
        break;
      case optSuite:
        o.suite = o.transB = true;
        break;
      case optLayers:
        o.layers = o.transB = true;
        break;
      case optRounds:
        o.rounds = static_cast<int>(parseCount(name, text, 1, 1000));
        break;
      case 'G':
        o.graph = static_cast<int>(parseCount(name, text, 0, 1000));
        break;
      case optLimit:
        o.limitSeconds = static_cast<int>(parseCount(name, text, 1, 1 << 20));
        break;
      case optBaseline:
        o.baseline = parseCount(name, text, 0, 1) == 1;
        break;
      case optSweepSplit:
        o.sweepSplits = parseSplits(name, optarg ? text : "1,2,4,6,8,12,16,24,32,48,64");
        break;
      case optNic:
        o.nicGBps = static_cast<double>(parseFloat(name, text));
        if (o.nicGBps <= 0) throw UsageError("--nic " + text + ": GB/s above 0 are legal");
        break;
      case optJson:
        o.json = text;
        break;
      case optCorrupt:
        o.corrupt = parseChoice(name, text, kCorruptions);
        break;
      case ':':
        throw UsageError(std::string(argv[optind - 1]) + ": needs a value (-h lists the options)");
      default:
        throw UsageError(std::string(argv[optind - 1]) + ": not an option (-h lists them)");
    }
  }
  if (optind < argc) throw UsageError(std::string(argv[optind]) + ": not an option (-h lists them)");
  if (!haveMax) o.mMax = o.mMin;
  o.out = outerType("--out", out, o.in, "-d");
  o.wire = outerType("--wire", wire, o.out, "--out");
  checkTogether(o, ranks);
  return o;
}

// `part`: of what each rank has its own.
std::vector<Shape> Options::shapes(int ranks) const {
  std::vector<Shape> result;
  const auto add = [&](int64_t m, int64_t whole, int64_t part) {
    if (operation == Operation::allGatherGemm) {
      result.push_back({m, part, whole});
    } else {
      result.push_back({m, whole, part * ranks});
    }
  };
  if (suite) {
    for (int64_t size = 2048; size <= 32768; size *= 2) {
      for (const int64_t part : {size / 2, size / 16}) add(size, size, part);
    }
  } else if (layers) {
    // Of a model of 70e9 parameters: 8192 wide, 28672 within its feed-forward layers, cut into so many parts.
    for (const int64_t cut : {2, 4, 8}) {
      for (const int64_t size : {8192, 28672}) {
        for (const int64_t m : {1, 8, 64, 256, 1024, 4096, 16384}) add(m, 8192, size / cut);
      }
    }
  } else {
    for (const int64_t m : scan()) result.push_back({m, n, k});
  }
  return result;
}

void Options::setDefaults(bool gpu) {
  if (launches == 0 && !gpu) launches = 4;
  if (limitSeconds == 0 && gpu) limitSeconds = sweeps() ? 300 : 120;
  if (window < 0) window = gpu ? 1 : 0;
}

int64_t partOfK(int64_t k, int rank, int ranks) {
  const int64_t units = k / 8;
  return 8 * (units / ranks + (rank < units % ranks ? 1 : 0));
}

}  // namespace mk::perf
