// How the chart looks: bars from 1, hollow where fastops is slower.
"use strict";
{
  const FASTOPS = "fastops";
  // What fastops is compared with; tests/explorer compares the names with those of the benchmark.
  const PEERS = {
    eager: "PyTorch eager",
    func: "torch.func",
    "cuda-graphs": "CUDA graphs",
    compile: "torch.compile",
    "fastops-compile": 'torch.compile, backend="fastops"',
    zentorch: "zentorch",
    "zentorch-linear": "zentorch's linear op",
  };
  const barsOf = (...colors) =>
    Object.fromEntries([FASTOPS, ...Object.keys(PEERS)].map((name, index) => [name, colors[index]]));
  const LIGHT = {
    text: "#1b1f24", background: "#ffffff", quiet: "#57606a", line: "#c8ced4",
    bars: barsOf("#1b1f24", "#c2560f", "#6b6b6b", "#9a2a52", "#1f5fa8", "#8a7414", "#2f7a3f", "#75509a"),
  };
  const DARK = {
    text: "#e6e9ec", background: "#14181c", quiet: "#a3adb8", line: "#48525c",
    bars: barsOf("#e6e9ec", "#f08a45", "#a9a9a9", "#e27aa0", "#6fa8e8", "#d6bf5c", "#79c48a", "#bb98de"),
  };
  const paletteOf = (isDark) => (isDark ? DARK : LIGHT);

  /** The chart in Vega-Lite's terms: a group of bars for each case, of the values that explorer.js made. */
  function chartSpec(values, show, width, colors) {
    const isRatio = show === "ratio";
    const names = [FASTOPS, ...Object.keys(PEERS)];
    const shown = names.filter((name) => values.some(({ peer }) => peer === name));
    const numbers = values.flatMap(({ value, lower, upper }) => [value, lower ?? value, upper ?? value]);
    const room = Math.max(0.12, 90 / width); // beside the longest bar, for its number
    let domain;
    if (isRatio) {
      const low = Math.max(1 / 16, Math.min(0.8, ...numbers)) * 0.95;
      const high = Math.min(64, Math.max(1.5, ...numbers));
      domain = [low, high * (high / low) ** (room / (1 - room))];
    } else {
      domain = [0, Math.max(100, ...numbers) * (1 + room)];
    }
    const x = (field) => ({
      field, type: "quantitative", title: isRatio ? "ratio (from 1; to the left fastops is slower)" : "% of roof",
      scale: { ...(isRatio ? { type: "log", base: 2 } : { type: "linear" }), domain, nice: false, clamp: true },
      axis: {
        values: isRatio ? ticks(...domain) : [0, 25, 50, 75, 100], format: "~g", labelOverlap: true,
        titleAnchor: "start", gridColor: colors.line,
      },
    });
    // The first place of each case is for its name, so that names take no room beside the bars.
    const place = { field: "place", type: "ordinal", axis: null, scale: { paddingInner: 0.25, paddingOuter: 0.1 } };
    const slot = { field: "peer", type: "nominal", sort: null, scale: { domain: ["", ...shown], paddingInner: 0.1 } };
    const hue = {
      field: "peer", type: "nominal", sort: null, legend: null,
      scale: { domain: shown, range: shown.map((name) => colors.bars[name]) },
    };
    const isSlower = { test: "datum.kind === 'slower'" };
    const base = { datum: isRatio ? 1 : 0 };
    const seen = new Set();
    const firsts = values.filter(({ place }) => !seen.has(place) && seen.add(place));
    const label = {
      type: "text", align: "left", baseline: "middle", fontWeight: 600, color: colors.text, limit: width - 28,
      aria: false,
    };
    const caseNames = {
      data: { values: firsts.map((one) => ({ ...one, peer: "" })) },
      encoding: { x: { value: 0 }, y: place, yOffset: { ...slot, bandPosition: 0.5 }, text: { field: "label" } },
    };
    return {
      // The bars have all of the width: neither names nor numbers stand beside them.
      width: width - 24, height: { step: 17, for: "offset" }, background: "transparent", data: { values },
      autosize: { type: "pad", contains: "padding" }, padding: { left: 8, right: 16, top: 4, bottom: 4 },
      layer: [
        {
          mark: { type: "bar", strokeWidth: 2, aria: false },
          encoding: {
            x: x("value"), x2: base, y: place, yOffset: slot, fill: hue, stroke: hue,
            fillOpacity: { condition: { ...isSlower, value: 0 }, value: 1 },
            strokeDash: { condition: { ...isSlower, value: [4, 3] }, value: [1, 0] },
          },
        },
        {
          transform: [{ filter: "datum.lower !== null" }],
          mark: { type: "rule", strokeWidth: 1.5, color: colors.text, aria: false },
          encoding: { x: x("lower"), x2: { field: "upper" }, y: place, yOffset: { ...slot, bandPosition: 0.5 } },
        },
        {
          transform: [{ calculate: `max(datum.value, datum.upper, ${isRatio ? 1 : 0})`, as: "end" }],
          mark: { type: "text", align: "left", baseline: "middle", dx: 5, color: colors.text, aria: false },
          encoding: { x: x("end"), y: place, yOffset: { ...slot, bandPosition: 0.5 }, text: { field: "text" } },
        },
        {
          data: { values: [{}] },
          mark: { type: "rule", color: colors.text, strokeWidth: 1.5, aria: false },
          encoding: { x: { datum: isRatio ? 1 : 100, type: "quantitative" } },
        },
        { ...caseNames, mark: { ...label, stroke: colors.background, strokeWidth: 4 } }, // over the lines
        { ...caseNames, mark: label },
      ],
      config: {
        font: "system-ui, sans-serif", view: { stroke: null }, text: { fontSize: 12 },
        axis: {
          labelColor: colors.text, titleColor: colors.quiet, domainColor: colors.line, tickColor: colors.line,
          labelFontSize: 12,
        },
      },
    };
  }

  /** Powers of two, and between them where there are few. */
  function ticks(low, high) {
    const powers = [];
    for (let power = 1 / 16; power <= high; power *= 2) if (power >= low) powers.push(power);
    if (powers.length > 3) return powers;
    return [...powers, 0.75, 1.25, 1.5, 3].filter((tick) => tick >= low && tick <= high).sort((a, b) => a - b);
  }

  window.fastopsChart = { FASTOPS, PEERS, paletteOf, chartSpec };
}
