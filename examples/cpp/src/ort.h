// The C API of ONNX Runtime with owners for what must be given back, and exceptions for its errors.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace ringflow {

/// What goes wrong through the user's files, in one line.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace ort {

/// The functions of the version that the header is of; a newer library has them too.
inline const OrtApi& api() {
  static const OrtApi* const found = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (found == nullptr) {
    throw Error(std::string("ONNX Runtime ") + OrtGetApiBase()->GetVersionString() +
                " is older than the header of this program (version 1." + std::to_string(ORT_API_VERSION) +
                "); use a newer library or an older header");
  }
  return *found;
}

template <auto Release>
struct Releaser {
  template <class Object>
  void operator()(Object* object) const {
    (api().*Release)(object);
  }
};

template <class Object, auto Release>
using Owned = std::unique_ptr<Object, Releaser<Release>>;

using Env = Owned<OrtEnv, &OrtApi::ReleaseEnv>;
using Session = Owned<OrtSession, &OrtApi::ReleaseSession>;
using SessionOptions = Owned<OrtSessionOptions, &OrtApi::ReleaseSessionOptions>;
using MemoryInfo = Owned<OrtMemoryInfo, &OrtApi::ReleaseMemoryInfo>;
using Metadata = Owned<OrtModelMetadata, &OrtApi::ReleaseModelMetadata>;
using TypeInfo = Owned<OrtTypeInfo, &OrtApi::ReleaseTypeInfo>;
using ShapeInfo = Owned<OrtTensorTypeAndShapeInfo, &OrtApi::ReleaseTensorTypeAndShapeInfo>;
using Value = Owned<OrtValue, &OrtApi::ReleaseValue>;
using Status = Owned<OrtStatus, &OrtApi::ReleaseStatus>;

/// Throw what a call reports.
inline void check(OrtStatus* reported) {
  if (const Status status{reported}) {
    throw Error(api().GetErrorMessage(status.get()));
  }
}

/// The object that a call of the API hands out, as its owner: make<Env>(api().CreateEnv, level, "name").
template <class Owner, class Call, class... Arguments>
Owner make(Call call, Arguments... arguments) {
  typename Owner::pointer made = nullptr;
  check(call(arguments..., &made));
  return Owner(made);
}

}  // namespace ort
}  // namespace ringflow
