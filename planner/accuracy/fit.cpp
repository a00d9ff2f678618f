#include "planner/accuracy/fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/text.hpp"

namespace moeplan {
namespace {

using Values = std::array<double, kNumConstants>;
using Jacobian = std::vector<Values>;  // [targets]

double range_of(int constant) {
    const ConstantFacts& facts = constant_facts()[static_cast<std::size_t>(constant)];
    return facts.most - facts.least;
}

/// Error and its derivatives of one set of targets.
class Problem {
  public:
    Problem(const std::vector<FitTarget>& targets, const FitOptions& options)
        : targets_(targets), options_(options), weight_(targets.size(), 0) {}

    /// Sources that count: all, but one.
    void leave_out(const std::string* source) {
        std::map<std::string, double> count;
        for (const FitTarget& target : targets_) count[target.source] += 1;
        double sum = 0;
        for (std::size_t i = 0; i < targets_.size(); ++i) {
            const bool counts = !source || targets_[i].source != *source;
            // n records of one source count as √n
            weight_[i] = counts ? 1 / std::sqrt(count[targets_[i].source]) : 0;
            sum += weight_[i];
        }
        for (double& weight : weight_) weight /= sum;
    }

    std::vector<double> errors(const std::vector<double>& predicted) const {
        std::vector<double> out(targets_.size());
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = std::log(predicted[i] / targets_[i].measured);
        return out;
    }

    /// Pseudo-Huber: e²/2 near zero, knee · |e| far from it.
    double loss(const std::vector<double>& errors, const Calibration& at) const {
        const double knee = options_.knee;
        double sum = 0;
        for (std::size_t i = 0; i < errors.size(); ++i)
            sum += weight_[i] * knee * (std::sqrt(knee * knee + errors[i] * errors[i]) - knee);
        for (int c = 0; c < kNumConstants; ++c)
            sum += 0.5 * options_.pull * knee * square(pulled(at, c));
        return sum;
    }

    /// Where the linearised errors are least: min Σ wᵢ ρ'(eᵢ)/eᵢ (eᵢ + Jᵢδ)² + pull, damped.
    Calibration step_from(const Calibration& at, const std::vector<double>& errors,
                          const Jacobian& jacobian, double damping) const {
        constexpr int n = kNumConstants;
        std::array<Values, n> a{};
        Values b{};
        for (std::size_t i = 0; i < errors.size(); ++i) {
            const double w =
                weight_[i] * options_.knee / std::sqrt(square(options_.knee) + square(errors[i]));
            for (int r = 0; r < n; ++r) {
                b[r] -= w * jacobian[i][r] * errors[i];
                for (int c = 0; c < n; ++c) a[r][c] += w * jacobian[i][r] * jacobian[i][c];
            }
        }
        for (int c = 0; c < n; ++c) {
            const double pull = options_.pull * options_.knee;
            b[c] -= pull * pulled(at, c);
            a[c][c] += pull + damping * (a[c][c] + 1e-9);
        }
        // A constant on its bound that wants to cross it stays there, and the others are solved
        // for.
        std::array<bool, n> fixed{};
        for (int round = 0; round < n; ++round) {
            const Values delta = solve(a, b, fixed);
            Calibration next = at;
            bool crossed = false;
            for (int c = 0; c < n; ++c) {
                const ConstantFacts& facts = constant_facts()[static_cast<std::size_t>(c)];
                double& value = next.values[static_cast<std::size_t>(c)];
                value += delta[c] * range_of(c);
                const double inside = std::clamp(value, facts.least, facts.most);
                const double was = at.values[static_cast<std::size_t>(c)];
                if (inside != value && !fixed[c] && (was == facts.least || was == facts.most))
                    fixed[c] = crossed = true;
                value = inside;
            }
            if (!crossed) return next;
        }
        return at;
    }

  private:
    static double square(double x) { return x * x; }
    double pulled(const Calibration& at, int c) const {
        const auto i = static_cast<std::size_t>(c);
        return (at.values[i] - options_.centre.values[i]) / range_of(c);
    }
    /// Gauss, rows of the fixed left out; a is positive definite.
    static Values solve(std::array<Values, kNumConstants> a, Values b,
                        const std::array<bool, kNumConstants>& fixed) {
        constexpr int n = kNumConstants;
        for (int c = 0; c < n; ++c)
            if (fixed[c]) {
                for (int r = 0; r < n; ++r) a[r][c] = a[c][r] = 0;
                a[c][c] = 1;
                b[c] = 0;
            }
        for (int p = 0; p < n; ++p)
            for (int r = p + 1; r < n; ++r) {
                const double factor = a[r][p] / a[p][p];
                for (int c = p; c < n; ++c) a[r][c] -= factor * a[p][c];
                b[r] -= factor * b[p];
            }
        for (int r = n - 1; r >= 0; --r) {
            for (int c = r + 1; c < n; ++c) b[r] -= a[r][c] * b[c];
            b[r] /= a[r][r];
        }
        return b;
    }

    const std::vector<FitTarget>& targets_;
    const FitOptions& options_;
    std::vector<double> weight_;
};

/// d errors / d (constant / range), towards the middle of the range where a bound is near.
Jacobian derivatives(const Problem& problem, const PredictAll& predict, const Calibration& at,
                     const std::vector<double>& errors, double step) {
    Jacobian out(errors.size());
    for (int c = 0; c < kNumConstants; ++c) {
        const ConstantFacts& facts = constant_facts()[static_cast<std::size_t>(c)];
        Calibration moved = at;
        double& value = moved.values[static_cast<std::size_t>(c)];
        const double sign = value + step * range_of(c) > facts.most ? -1 : 1;
        value += sign * step * range_of(c);
        const std::vector<double> there = problem.errors(predict(moved));
        for (std::size_t i = 0; i < errors.size(); ++i)
            out[i][static_cast<std::size_t>(c)] = sign * (there[i] - errors[i]) / step;
    }
    return out;
}

struct Rounds {
    Calibration at;
    std::vector<double> errors;
    Jacobian jacobian;
    double before = 0, after = 0;
    int count = 0;
};

/// Rounds until nothing is gained. @param renew  derivatives anew each round, else those given
Rounds minimise(const Problem& problem, const PredictAll& predict, Rounds from, bool renew,
                const FitOptions& options) {
    double loss = problem.loss(from.errors, from.at), damping = 1e-3;
    from.before = loss;
    for (from.count = 0; from.count < options.most_rounds; ++from.count) {
        if (renew)
            from.jacobian = derivatives(problem, predict, from.at, from.errors, options.step);
        double gain = 0;
        for (int tries = 0; tries < 5 && gain <= 0; ++tries, damping *= 10) {
            const Calibration next =
                problem.step_from(from.at, from.errors, from.jacobian, damping);
            if (next.values == from.at.values) break;
            const std::vector<double> errors = problem.errors(predict(next));
            const double here = problem.loss(errors, next);
            if (!(here < loss)) continue;
            gain = (loss - here) / loss;
            from.at = next;
            from.errors = errors;
            loss = here;
            damping = std::max(1e-6, damping / 100);
            if (options.progress)
                options.progress("round " + std::to_string(from.count + 1) + ": loss " +
                                 exact_text(loss));
        }
        if (gain < options.enough) break;
    }
    from.after = loss;
    return from;
}

}  // namespace

Fit fit_constants(const std::vector<FitTarget>& targets, const PredictAll& predict,
                  const Calibration& start, const FitOptions& options) {
    Problem problem(targets, options);
    problem.leave_out(nullptr);
    Rounds from;
    from.at = start;
    from.errors = problem.errors(predict(start));
    const Rounds done = minimise(problem, predict, std::move(from), true, options);
    return {done.at, done.before, done.after, done.count, {}};
}

Fit fit_with_sources_left_out(const std::vector<FitTarget>& targets, const PredictAll& predict,
                              const Calibration& start, const FitOptions& options) {
    Problem problem(targets, options);
    problem.leave_out(nullptr);
    Rounds from;
    from.at = start;
    from.errors = problem.errors(predict(start));
    const Rounds found = minimise(problem, predict, std::move(from), true, options);
    Fit fit{found.at, found.before, found.after, found.count, {}};
    // One source more or less moves constants by little: errors follow the last derivatives.
    const PredictAll linear = [&](const Calibration& at) {
        std::vector<double> out(targets.size());
        for (std::size_t i = 0; i < out.size(); ++i) {
            double error = found.errors[i];
            for (int c = 0; c < kNumConstants; ++c) {
                const auto k = static_cast<std::size_t>(c);
                error += found.jacobian[i][k] * (at.values[k] - found.at.values[k]) / range_of(c);
            }
            out[i] = targets[i].measured * std::exp(error);
        }
        return out;
    };
    for (const FitTarget& target : targets) {
        if (fit.left_out.contains(target.source)) continue;
        problem.leave_out(&target.source);
        fit.left_out[target.source] = minimise(problem, linear, found, false, options).at;
    }
    return fit;
}

}  // namespace moeplan
