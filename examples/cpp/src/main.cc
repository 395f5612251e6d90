// Reconstruct the events of a flat file: one line of text per particle.
#include <atomic>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "flat_file.h"
#include "producer.h"

namespace ringflow {
namespace {

constexpr const char* kUsage = "usage: reconstruct_flat MODEL.onnx EVENTS.flat [-o FILE] [--threads N]";
constexpr std::size_t kEventsPerThread = 64;  // in memory at a time
constexpr unsigned long kMostThreads = 1024;

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string model, events, out;
  std::size_t threads = 1;
};

std::size_t parseThreads(const std::string& word) {
  const bool is_number = !word.empty() && word.size() < 6 && word.find_first_not_of("0123456789") == std::string::npos;
  const unsigned long threads = is_number ? std::stoul(word) : 0;
  if (threads < 1 || threads > kMostThreads) throw UsageError("--threads takes 1 to 1024, not '" + word + "'");
  return threads;
}

Options parse(const std::vector<std::string>& words) {
  Options options;
  std::vector<std::string> files;
  for (std::size_t k = 0; k < words.size(); ++k) {
    const bool takes_value = words[k] == "-o" || words[k] == "--threads";
    if (takes_value && k + 1 == words.size()) throw UsageError(words[k] + " needs a value");
    if (words[k] == "-o") {
      options.out = words[++k];
    } else if (words[k] == "--threads") {
      options.threads = parseThreads(words[++k]);
    } else if (words[k].size() > 1 && words[k][0] == '-') {
      throw UsageError("unknown option '" + words[k] + "'");
    } else {
      files.push_back(words[k]);
    }
  }
  if (files.size() != 2) throw UsageError("give a model and a file of events");
  options.model = files[0];
  options.events = files[1];
  return options;
}

/// As many digits as bring the same float32 back.
void write(std::ostream& out, const Event& event, const Particles& particles, const Model& model) {
  char momentum[80];
  for (const Particle& particle : particles) {
    std::snprintf(momentum, sizeof momentum, "%.9g %.9g %.9g %.9g", particle.px, particle.py, particle.pz,
                  particle.energy);
    out << event.number << ' ' << model.classNames().at(static_cast<std::size_t>(particle.label)) << ' '
        << particle.charge << ' ' << momentum << ' ' << particle.track << ' ' << particle.calorimeter << '\n';
  }
}

/// The first `count` events, each by whichever thread is free; all of them call the same session.
std::vector<Particles> produceAll(const std::vector<ParticleFlowProducer>& streams, std::vector<Event>& events,
                                  std::size_t count) {
  std::vector<Particles> particles(count);
  std::vector<std::exception_ptr> failures(streams.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&](std::size_t stream) {
    try {
      for (std::size_t k = next++; k < count; k = next++) particles[k] = streams[stream].produce(events[k]);
    } catch (...) {
      failures[stream] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t stream = 1; stream < streams.size(); ++stream) threads.emplace_back(work, stream);
  work(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return particles;
}

void run(const Options& options) {
  const auto model = ParticleFlowProducer::initializeGlobalCache(options.model);
  FlatFile file(options.events, *model);
  std::ofstream written;
  if (!options.out.empty()) {
    written.open(options.out);
    if (!written) throw Error("cannot write " + options.out);
  }
  std::ostream& out = options.out.empty() ? std::cout : written;
  out << "# event class charge px py pz energy track " << model->calorimeter().name << '\n';

  std::vector<ParticleFlowProducer> streams;
  for (std::size_t stream = 0; stream < options.threads; ++stream) streams.emplace_back(*model);
  std::vector<Event> events(kEventsPerThread * options.threads);
  std::uint64_t num_particles = 0;
  for (std::size_t count = events.size(); count == events.size();) {
    for (count = 0; count < events.size() && file.read(events[count]);) ++count;
    const std::vector<Particles> particles = produceAll(streams, events, count);
    for (std::size_t k = 0; k < count; ++k) {
      write(out, events[k], particles[k], *model);
      num_particles += particles[k].size();
    }
  }
  if (!out.flush()) throw Error("cannot write " + (options.out.empty() ? "the output" : options.out));
  std::cerr << num_particles << " particles in " << file.numEvents() << " events\n";
}

}  // namespace
}  // namespace ringflow

int main(int count, char** words) {
  try {
    ringflow::run(ringflow::parse({words + 1, words + count}));
    return 0;
  } catch (const ringflow::UsageError& error) {
    std::cerr << "reconstruct_flat: " << error.what() << "\n" << ringflow::kUsage << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "reconstruct_flat: " << error.what() << '\n';
    return 1;
  }
}
