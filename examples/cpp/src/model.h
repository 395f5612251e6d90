// An opened model: what all threads share.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "ort.h"

namespace ringflow {

struct Column {
  std::string name;
  bool required = false;  // without it no element can be made; the others may be NaN
};

/// One input of the model: the name of a collection and its columns in their order.
struct Input {
  std::string name;
  std::vector<Column> columns;
};

/// Environment, session and the description in the model's properties; nothing changes after construction.
class Model {
public:
  /// Throws Error if the file cannot be read, or was not written by `ringflow export`.
  explicit Model(const std::string& path);

  const Input& track() const { return inputs_[0]; }
  const Input& calorimeter() const { return inputs_[1]; }
  const std::vector<std::string>& classNames() const { return class_names_; }
  const std::string& detector() const { return detector_; }

  /// Label, charge, momentum, track and calorimeter row of the candidates. Many threads may call it at a time.
  std::array<ort::Value, 5> run(const OrtValue* track, const OrtValue* calorimeter) const;

private:
  void readDescription();
  void requireInputs() const;
  std::string property(OrtModelMetadata* metadata, const char* name) const;

  ort::Env env_;  // before the session, which must go first
  ort::Session session_;
  std::array<Input, 2> inputs_;
  std::vector<std::string> class_names_;
  std::string detector_;
  std::array<std::string, 5> outputs_;
};

}  // namespace ringflow
