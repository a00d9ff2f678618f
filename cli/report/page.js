"use strict";
// Feeds the page's data to Chart.js, in the colours of the reader's scheme.
(function () {
  const charts = [];
  const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = value => {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e12) return +(value / 1e12).toPrecision(3) + " T";
    if (size >= 1e9) return +(value / 1e9).toPrecision(3) + " G";
    if (size >= 1e6) return +(value / 1e6).toPrecision(3) + " M";
    if (size >= 1e4) return +(value / 1e3).toPrecision(3) + " k";
    if (size < 1e-3) return value.toExponential(1);
    return String(+value.toPrecision(4));
  };

  // Message sizes at powers of two: 64 KiB, 16 MiB.
  const binary = value => {
    const power = Math.max(0, Math.min(3, Math.floor(Math.log2(value) / 10)));
    return +(value / 1024 ** power).toPrecision(3) + " " + ["B", "KiB", "MiB", "GiB"][power];
  };
  // Powers of two are read best at powers of two (ranks, message sizes).
  function powersOfTwo(series) {
    const values = [...new Set(series.flatMap(one => one.points.map(p => p[0])))].sort((a, b) => a - b);
    return values.length > 1 && values.every(v => v > 0 && Number.isInteger(Math.log2(v))) ? values : null;
  }
  // A logarithmic axis ends a tenth beyond its data, not at the next power of ten.
  function logRange(series, at) {
    const values = series.flatMap(one => one.points.map(p => p[at])).filter(v => v > 0);
    return values.length ? { min: Math.min(...values) / 1.1, max: Math.max(...values) * 1.1 } : {};
  }
  // Its marks are round numbers, the fewer the more decades it spans.
  function logMarks(range) {
    if (!range || !range.min) return null;
    const decades = Math.log10(range.max / range.min), marks = [];
    const steps = decades > 3 ? [1] : decades > 1.5 ? [1, 3] : decades > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
    for (let power = Math.floor(Math.log10(range.min)); power <= Math.log10(range.max); ++power)
      for (const step of steps) if (step * 10 ** power >= range.min && step * 10 ** power <= range.max) marks.push(step * 10 ** power);
    return marks.length > 1 ? marks : null;
  }
  function axis(title, log, zero, tight, marks, range) {
    if (log && !marks) marks = logMarks(range);
    return {
      ...(log && range ? range : {}),
      type: log ? "logarithmic" : "linear", beginAtZero: zero && !log, grace: zero || tight ? 0 : "5%",
      ...(tight && !zero ? { bounds: "data" } : {}),
      ...(marks ? { afterBuildTicks: scale => { const every = Math.ceil(marks.length / 10);
        scale.ticks = marks.filter((_, i) => i % every === 0).map(value => ({ value })); } } : {}),
      title: { display: title !== "", text: title, color: style("--soft") },
      grid: { color: style("--rule"), borderColor: style("--rule") },
      ticks: { color: style("--soft"), callback: log && title === "bytes" ? binary : short, maxTicksLimit: 9, maxRotation: 0 },
    };
  }
  function categories(title) {
    return { type: "category", title: { display: title !== "", text: title, color: style("--soft") },
      grid: { display: false, borderColor: style("--rule") }, ticks: { color: style("--ink"), autoSkip: true, maxRotation: 0 } };
  }

  function config(data) {
    const bars = data.kind === "bars" || data.kind === "stacked_bars";
    const palette = ["--c0", "--c2", "--c5", "--c4", "--c6", "--c7", "--c8", "--c3", "--c1", "--c9"];
    const datasets = data.series.map((series, i) => {
      const colour = style(palette[i % palette.length]);
      const base = { label: series.name, labels: series.labels, borderColor: colour, backgroundColor: colour };
      if (bars) return Object.assign(base, { data: series.points.map(p => p[1]), maxBarThickness: 28 });
      if (series.guide)
        return { label: series.name, data: series.points.map(p => ({ x: p[0], y: p[1] })), showLine: true, borderColor: style("--soft"),
          backgroundColor: style("--soft"), borderWidth: 1.5, borderDash: [5, 4], pointRadius: 0, pointHitRadius: 0, order: 2 };
      const joined = data.kind === "line" || series.line;
      return Object.assign(base, { data: series.points.map(p => ({ x: p[0], y: p[1] })), showLine: joined, borderWidth: 2, tension: 0,
        pointRadius: data.kind === "line" ? (series.points.length === 1 ? 5 : 0) : series.emphasised ? 6 : 3.5, pointHoverRadius: 7, pointHitRadius: 8,
        backgroundColor: series.emphasised || data.kind === "line" ? colour : colour + "99", order: series.emphasised ? 0 : 1 });
    });
    const value = axis(data.horizontal ? data.x : data.y, data.horizontal ? data.log_x : data.log_y, true);
    const scales = bars
      ? (data.horizontal ? { x: value, y: categories(data.y) } : { y: value, x: categories(data.x) })
      : { x: axis(data.x, data.log_x, data.x_from_zero, data.kind === "line", data.log_x ? powersOfTwo(data.series) : null, logRange(data.series, 0)),
          y: axis(data.y, data.log_y, data.y_from_zero, false, null, logRange(data.series, 1)) };
    if (data.kind === "stacked_bars") { scales.x.stacked = true; scales.y.stacked = true; }
    return {
      type: bars ? "bar" : "scatter",
      data: bars ? { labels: data.categories, datasets } : { datasets },
      options: {
        responsive: true, maintainAspectRatio: false, animation: false, indexAxis: data.horizontal ? "y" : "x", scales,
        interaction: { mode: bars ? "index" : "nearest", intersect: !bars, axis: data.horizontal ? "y" : "x" },
        plugins: {
          legend: { display: data.series.length > 1, labels: { color: style("--ink"), usePointStyle: true, boxHeight: 7 } },
          tooltip: { callbacks: { label: item => {
            const named = (item.dataset.labels || [])[item.dataIndex];
            const where = bars ? short(data.horizontal ? item.parsed.x : item.parsed.y) : short(item.parsed.x) + ", " + short(item.parsed.y);
            return (item.dataset.label ? item.dataset.label + ": " : "") + (named ? named + " (" + where + ")" : where);
          } } },
        },
      },
    };
  }

  function draw() {
    while (charts.length) charts.pop().destroy();
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    for (const element of document.querySelectorAll("script[data-chart]")) {
      const data = JSON.parse(element.textContent);
      charts.push(new Chart(document.getElementById(element.dataset.chart), config(data)));
    }
  }
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
