// Arguments of mk_queue_perf; see options.h.
#include "queue/options.h"

#include <getopt.h>

#include "common/options.h"

namespace mk::perf {
namespace {

constexpr int64_t kMostBytes = 1 << 30;

enum Long : int { optSmall = 256, optTransport, optDevice, optQueues, optJson, optCorrupt };

constexpr option kLongOptions[] = {
    {"small", required_argument, nullptr, optSmall},
    {"transport", required_argument, nullptr, optTransport},
    {"device", required_argument, nullptr, optDevice},
    {"queues", required_argument, nullptr, optQueues},
    {"json", required_argument, nullptr, optJson},
    {"corrupt", required_argument, nullptr, optCorrupt},
    {"timeout", required_argument, nullptr, 'T'},
    {"help", no_argument, nullptr, 'h'},
    {nullptr, 0, nullptr, 0},
};

std::string optionName(int code) {
  for (const option* o = kLongOptions; o->name; ++o) {
    if (o->val == code) return std::string("--") + o->name;
  }
  return std::string("-") + static_cast<char>(code);
}

Kind parseKind(const std::string& name, const std::string& text) {
  for (const Kind kind : {Kind::latency, Kind::rate, Kind::bandwidth}) {
    if (text == nameOf(kind)) return kind;
  }
  throw UsageError(name + " " + text + ": legal are latency, rate, bandwidth");
}

}  // namespace

const char* nameOf(Kind kind) {
  switch (kind) {
    case Kind::latency:
      return "latency";
    case Kind::rate:
      return "rate";
    case Kind::bandwidth:
      break;
  }
  return "bandwidth";
}

QueueOptions parseQueueOptions(int argc, char** argv, int ranks) {
  QueueOptions o;
  bool haveMax = false;
  opterr = 0;
  optind = 1;
  for (int code = 0; (code = getopt_long(argc, argv, ":b:e:f:n:w:T:h", kLongOptions, nullptr)) != -1;) {
    const std::string text = optarg ? optarg : "";
    const std::string name = optionName(code);
    switch (code) {
      case 'b':
        o.bytesMin = parseCount(name, text, 1, kMostBytes);
        break;
      case 'e':
        o.bytesMax = parseCount(name, text, 1, kMostBytes);
        haveMax = true;
        break;
      case 'f':
        o.factor = parseCount(name, text, 2, 1 << 20);
        break;
      case 'n':
        o.writes = parseCount(name, text, 1, 1 << 24);
        break;
      case 'w':
        o.warmup = parseCount(name, text, 0, 1 << 24);
        break;
      case 'T':
        o.timeoutSeconds = static_cast<int>(parseCount(name, text, 1, 3600));
        break;
      case 'h':
        o.help = true;
        return o;
      case optSmall:
        o.smallBytes = parseCount(name, text, 1, 1 << 20);
        break;
      case optTransport:
        if (text.empty()) throw UsageError(name + " '': a transport's name or the path of its file is legal");
        o.transport = text;
        break;
      case optDevice:
        o.device = static_cast<int>(parseCount(name, text, 0, 1 << 10));
        break;
      case optQueues:
        o.queues = static_cast<uint32_t>(parseCount(name, text, 1, 1 << 10));
        break;
      case optJson:
        o.json = text;
        break;
      case optCorrupt:
        o.corruptKind = parseKind(name, text);
        o.corrupt = true;
        break;
      case ':':
        throw UsageError(std::string(argv[optind - 1]) + ": needs a value (-h lists the options)");
      default:
        throw UsageError(std::string(argv[optind - 1]) + ": not an option (-h lists them)");
    }
  }
  if (optind < argc) throw UsageError(std::string(argv[optind]) + ": not an option (-h lists them)");
  if (!haveMax && o.bytesMin > o.bytesMax) o.bytesMax = o.bytesMin;
  if (o.bytesMax < o.bytesMin) {
    throw UsageError("-e " + std::to_string(o.bytesMax) + ": must be at least -b, " + std::to_string(o.bytesMin));
  }
  if (ranks != 2) throw UsageError(std::to_string(ranks) + " ranks: 2 are legal (mpirun -np 2)");
  return o;
}

const char* queueHelpText() {
  return "mk_queue_perf: one transport plugin between two ranks, host memory to host memory:\n"
         "  mpirun -np 2 mk_queue_perf [options]\n"
         "\n"
         "  --transport NAME      libmkernel-NAME.so of MKERNEL_PLUGIN_PATH or of the place it is installed in, or "
         "the\n"
         "                        path of a file (loopback)\n"
         "  --device INDEX        of the transport's devices, the same on both ranks (0)\n"
         "  --queues COUNT        spread the writes over so many of the transport's queues (1)\n"
         "  -b MIN  -e MAX        scan the bytes of a write, for bandwidth, from MIN (256) to MAX (4M)\n"
         "  -f FACTOR             multiply them from row to row (2)\n"
         "  --small BYTES         of a write, for latency and rate (8)\n"
         "  -n COUNT              writes per row (1000); for bandwidth 1G bytes in all, but at least 16 of them, "
         "suffice\n"
         "  -w COUNT              warm-up writes (20)\n"
         "  -T SECONDS            longest time that one step may take (60)\n"
         "  --json FILE           also write JSON Lines: a header, one object per row, a summary\n"
         "  -h, --help            this text\n"
         "\n"
         "K, M, G behind a number mean 2^10, 2^20, 2^30.  Parameters of the transport (MKERNEL_...) come from the\n"
         "environment.  Exit status: 0 good; 1 wrong data; 2 arguments; 3 the transport failed; 4 a step took too "
         "long;\n"
         "5 the system failed.\n";
}

}  // namespace mk::perf
