// Values of the library's parameters, as plugins read them when they are initialised.  Failures name the parameter, its value and
// what is legal.
#pragma once

#include <string>

#include "mkernel/transport.h"

namespace mk::plugin {

// NULL: the host does not know it, and what follows gives the value that it is given.
const char* valueOf(const mkTransportHost_t& host, const char* name);
// "" is no text either.
std::string readText(const mkTransportHost_t& host, const char* name, const std::string& value);
long long readInteger(const mkTransportHost_t& host, const char* name, long long least, long long most,
                      long long value);
// `value` has the default, and takes what is read.
template <class Value>
void readInto(const mkTransportHost_t& host, const char* name, long long least, long long most, Value* value) {
  *value = static_cast<Value>(readInteger(host, name, least, most, *value));
}
double readNumber(const mkTransportHost_t& host, const char* name, double most, double value);  // from 0

}  // namespace mk::plugin
