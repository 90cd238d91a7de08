// Parameters: declared once, in params.def, and read once per process from the environment and a configuration file
// (MKERNEL_CONF_FILE, else ~/.mkernel.conf, else /etc/mkernel.conf; lines NAME=value).  The environment wins over the file;
// a communicator's mkConfig_t wins over both.  Unknown MKERNEL_* variables are warned about with the nearest name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mk {

struct Params {
#define MK_PARAM_INT(member, name, value, help) int64_t member = value;
#define MK_PARAM_FLOAT(member, name, value, help) double member = value;
#define MK_PARAM_BOOL(member, name, value, help) bool member = value;
#define MK_PARAM_STRING(member, name, value, help) std::string member = value;
#include "host/params.def"
#undef MK_PARAM_INT
#undef MK_PARAM_FLOAT
#undef MK_PARAM_BOOL
#undef MK_PARAM_STRING
};

// The values in force, read at the first call.  Any thread.
const Params& params();

struct ParamDescription {
  const char* name;  // MKERNEL_...
  const char* type;  // int, float, bool, string
  std::string defaultValue, value, source;
  const char* help;
};
// In the order of params.def.  Any thread.
const std::vector<ParamDescription>& paramDescriptions();

// Reads the parameters from the given environment (NAME=value strings) and configuration text instead; for params() and for
// tests.  Warnings (unknown name, value that does not parse, and then the default stands) are appended to *warnings.
Params readParams(const std::vector<std::string>& environment, const std::string& confText, const std::string& confPath,
                  std::vector<ParamDescription>* descriptions, std::vector<std::string>* warnings);

}  // namespace mk
