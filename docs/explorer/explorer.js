// Draws what the form chooses of the measurements in data.js. It makes no requests: opened as a file, it works as well.
"use strict";
{
  const { machines, documentation } = window.fastopsBenchmarks;
  const { FASTOPS, PEERS, paletteOf, chartSpec } = window.fastopsChart;
  const MOST_BARS = 120; // more are in the table alone
  const FILTERS = ["network", "rows", "dtype", "mode"];
  const COLUMN = { network: "name", rows: "size", dtype: "dtype", mode: "mode" };
  const SELECTS = ["cpu", "suite", ...FILTERS, "order"];

  const element = (id) => document.getElementById(id);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const unique = (values) => [...new Set(values)];
  let state;

  // ---- What is chosen ----

  /** What the address says after #, which may be anything. */
  function stateOfAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const names = given.has("peers") ? given.get("peers").split(",").filter(Boolean) : null;
    const chosen = Object.fromEntries(SELECTS.map((name) => [name, given.get(name) ?? ""]));
    // A training step is the larger part of what people wait for, and where less is gained.
    return { ...chosen, mode: given.get("mode") ?? "training", peers: names, show: given.get("show") };
  }

  function addressOfState() {
    const address = new URLSearchParams();
    for (const name of SELECTS) {
      if (state[name] || name === "mode") address.set(name, state[name]);
    }
    if (state.peers) address.set("peers", state.peers.join(","));
    if (state.show !== "ratio") address.set("show", state.show);
    return `#${address}`;
  }

  const machine = () => machines.find(({ id }) => id === state.cpu);
  const suites = () => unique(machine().cases.map((one) => one.suite));
  const casesOfSuite = () => machine().cases.filter((one) => one.suite === state.suite);

  function peersOfSuite() {
    const found = casesOfSuite();
    return Object.keys(PEERS).filter((peer) => found.some((one) => one.results[peer]?.ratio));
  }

  const peers = () => peersOfSuite().filter((peer) => !state.peers || state.peers.includes(peer));

  /** The cases that pass the filters, all of them or those before one of them. */
  function casesChosen(before = FILTERS.length) {
    return FILTERS.slice(0, before).reduce(
      (found, name) => found.filter((one) => !state[name] || one[COLUMN[name]] === state[name]),
      casesOfSuite(),
    );
  }

  const optionsOf = (name) => unique(casesChosen(FILTERS.indexOf(name)).map((one) => one[COLUMN[name]]));

  /** Puts something that there is in the place of what there is not. */
  function settle() {
    if (!machine()) state.cpu = machines[0].id;
    if (!suites().includes(state.suite)) state.suite = suites()[0];
    if (state.show !== "roof") state.show = "ratio";
    for (const name of FILTERS) {
      if (!optionsOf(name).includes(state[name])) state[name] = "";
    }
  }

  /** In a suite that was chosen just now: no more than can be drawn, by taking the size in the middle. */
  function narrow() {
    const sizes = optionsOf("rows");
    if (casesChosen().length * peersOfSuite().length > MOST_BARS) state.rows = sizes[Math.floor(sizes.length / 2)];
  }

  function ordered(cases) {
    if (!state.order) return cases;
    const names = peers();
    const worst = (one) => Math.min(...names.map((peer) => one.results[peer]?.ratio?.[0] ?? Infinity));
    const best = (one) => Math.max(...names.map((peer) => one.results[peer]?.ratio?.[0] ?? -Infinity));
    const sorted = [...cases];
    return state.order === "losses"
      ? sorted.sort((a, b) => worst(a) - worst(b))
      : sorted.sort((a, b) => best(b) - best(a));
  }

  // ---- What is said ----

  /** Of the ratio as it is shown, with two decimals: neither more nor less than what people read. */
  function verdict(ratio) {
    const shown = Number(ratio.toFixed(2));
    return shown < 1 ? "slower" : shown > 1 ? "faster" : "level";
  }

  function timeText(seconds) {
    if (seconds >= 1) return `${seconds.toFixed(2)} s`;
    const [value, unit] = seconds < 0.999e-3 ? [seconds * 1e6, "µs"] : [seconds * 1e3, "ms"];
    return `${value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
  }

  const roofText = (percent) => percent.toFixed(percent >= 10 ? 0 : 1);
  const sizeWord = () => ({ elementwise: "elements", derivatives: "points" })[state.suite] ?? "rows";
  const sizeText = (one) => `${one.size} ${one.size === "1" ? sizeWord().slice(0, -1) : sizeWord()}`;

  /** The case's name, without what all of those chosen have in common. */
  function caseText(one, cases) {
    const parts = { network: one.name, rows: sizeText(one), dtype: one.dtype, mode: one.mode };
    const wanted = FILTERS.filter((name) => new Set(cases.map((other) => other[COLUMN[name]])).size > 1);
    return (wanted.length ? wanted : ["network"]).map((name) => parts[name]).join(" · ");
  }

  function comparisons(cases) {
    return cases.flatMap((one) =>
      peers()
        .filter((peer) => one.results[peer]?.ratio)
        .map((peer) => ({ one, peer, ratio: one.results[peer].ratio })),
    );
  }

  function summaryOf(cases) {
    const found = comparisons(cases);
    if (!found.length) return "Nothing to compare: choose at least one to compare with.";
    const count = (kind) => found.filter(({ ratio }) => verdict(ratio[0]) === kind).length;
    const least = found.reduce((a, b) => (b.ratio[0] < a.ratio[0] ? b : a));
    const text = [least.one.name, sizeText(least.one), least.one.dtype, least.one.mode].join(", ");
    return (
      `${found.length} ${found.length === 1 ? "comparison" : "comparisons"}: fastops is faster in ` +
      `${count("faster")}, level in ${count("level")}, slower in ${count("slower")}. ` +
      `The least ratio is ${least.ratio[0].toFixed(2)}, beside ${PEERS[least.peer]}: ${text}.`
    );
  }

  // ---- The form ----

  function fill(name, options) {
    const select = element(name);
    select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
    select.value = state[name];
  }

  function fillForm() {
    fill("cpu", machines.map((one) => [one.id, one.name]));
    fill("suite", suites().map((suite) => [suite, suite]));
    for (const name of FILTERS) {
      const options = optionsOf(name).map((value) => [value, value]);
      fill(name, options.length > 1 ? [["", "all"], ...options] : [["", options[0]?.[0] ?? "all"]]);
      if (options.length === 1) element(name).value = "";
    }
    element("order").value = state.order;
    const word = sizeWord();
    element("network").labels[0].textContent = state.suite === "elementwise" ? "Activation" : "Network";
    element("rows").labels[0].textContent = word[0].toUpperCase() + word.slice(1);
    fillPeers();
    for (const radio of document.querySelectorAll('input[name="show"]')) radio.checked = radio.value === state.show;
  }

  /** The boxes stay as they are while the peers do, or the keyboard would lose its place. */
  function fillPeers() {
    const group = element("peers");
    const present = [...group.querySelectorAll("input")].map((box) => box.value);
    if (present.join() !== peersOfSuite().join()) {
      group.replaceChildren(group.querySelector("legend"));
      for (const peer of peersOfSuite()) {
        const box = Object.assign(document.createElement("input"), { type: "checkbox", value: peer, name: "peer" });
        const label = document.createElement("label");
        label.append(box, PEERS[peer]);
        group.append(label);
      }
    }
    const chosen = peers();
    for (const box of group.querySelectorAll("input")) box.checked = chosen.includes(box.value);
  }

  // ---- The table ----

  function cell(text, kind = "td", name = "") {
    const made = document.createElement(kind);
    made.textContent = text;
    if (name) made.className = name;
    return made;
  }

  function ratioCell(result) {
    if (!result) return cell("");
    if (!result.ratio) return Object.assign(cell(result.status), { title: result.note });
    const [median, lower, upper] = result.ratio;
    const isSlower = verdict(median) === "slower";
    const made = cell(isSlower ? `▼ ${median.toFixed(2)} slower` : median.toFixed(2), "td", isSlower ? "slower" : "");
    made.append(cell(`${lower.toFixed(2)} to ${upper.toFixed(2)}`, "span", "spread"));
    return made;
  }

  /** A column for what differs among the cases; what they have in common stands in the caption. */
  function drawTable(cases) {
    const table = element("table");
    const differing = FILTERS.slice(1).filter((name) => unique(cases.map((one) => one[COLUMN[name]])).length > 1);
    const common = FILTERS.slice(1).filter((name) => !differing.includes(name));
    const isKept = cases.some((one) => one.results[FASTOPS].kept != null);
    const titles = [
      ...["network", ...differing].map((name) => element(name).labels[0].textContent),
      "fastops", ...peers().map((peer) => `ratio to ${PEERS[peer]}`), "% of roof", ...(isKept ? ["kept"] : []),
    ];
    const top = document.createElement("tr");
    top.append(...titles.map((title) => Object.assign(cell(title, "th"), { scope: "col" })));
    table.tHead.replaceChildren(top);
    table.tBodies[0].replaceChildren(
      ...cases.map((one) => {
        const own = one.results[FASTOPS];
        const eager = one.results.eager?.kept;
        const row = document.createElement("tr");
        row.append(
          Object.assign(cell(one.name, "th"), { scope: "row" }),
          ...differing.map((name) => cell(one[COLUMN[name]])),
          cell(own.seconds == null ? own.status : timeText(own.seconds)),
          ...peers().map((peer) => ratioCell(one.results[peer])),
          cell(own.roof == null ? "" : roofText(own.roof)),
          ...(isKept ? [cell(own.kept != null && eager ? (own.kept / eager).toFixed(2) : "")] : []),
        );
        return row;
      }),
    );
    const alike = common.map((name) => (name === "rows" ? sizeText(cases[0]) : cases[0][COLUMN[name]])).join(", ");
    element("table-caption").textContent =
      `${cases.length} of the ${casesOfSuite().length} cases of the suite ${state.suite}${alike && `; ${alike}`}. ` +
      "Ratios above 1: fastops is faster; ▼ marks those below 1. Beneath each, its quartiles.";
    const reasons = unique(
      cases.flatMap((one) =>
        Object.entries(one.results).filter(([, result]) => result.note)
          .map(([peer, result]) => `${PEERS[peer] ?? peer}, ${result.status}: ${result.note}`),
      ),
    );
    element("notes").replaceChildren(...reasons.map((reason) => cell(reason, "li")));
  }

  // ---- The chart ----

  function bars(cases) {
    const labels = cases.map((one) => caseText(one, cases));
    const shown = state.show === "roof" ? [FASTOPS, ...peers()] : peers();
    return cases.flatMap((one, index) =>
      shown.flatMap((peer) => {
        const result = one.results[peer];
        const values = state.show === "roof" ? result?.roof != null && [result.roof, null, null] : result?.ratio;
        if (!values) return [];
        const [value, lower, upper] = values;
        const kind = state.show === "roof" ? "" : verdict(value);
        const mark = kind === "slower" ? " ▼ slower" : "";
        const text = state.show === "roof" ? `${roofText(value)}%` : value.toFixed(2) + mark;
        return [{ place: index, label: labels[index], peer, value, lower, upper, kind, text }];
      }),
    );
  }

  function drawLegend(values, colors) {
    const names = [FASTOPS, ...Object.keys(PEERS)].filter((name) => values.some(({ peer }) => peer === name));
    const keys = names.map((name) => {
      const key = cell(PEERS[name] ?? name, "span", "key");
      key.style.setProperty("--color", colors.bars[name]);
      return key;
    });
    if (values.some(({ kind }) => kind === "slower")) keys.push(cell("▼ fastops is slower", "span", "key hollow"));
    element("legend").replaceChildren(...keys);
  }

  function drawChart(cases) {
    const chart = element("chart");
    const colors = paletteOf(dark.matches);
    let values = bars(cases);
    const cut = values.length > MOST_BARS ? values[MOST_BARS].place : cases.length;
    values = values.filter(({ place }) => place < cut);
    const kind = state.show === "roof" ? "Percent of the roof" : "Ratios";
    element("chart-caption").textContent =
      `${kind} of ${cut < cases.length ? `the first ${cut} of ${cases.length}` : cases.length} cases` +
      `${cut < cases.length ? "; choose fewer above to see all" : ""}. The table has the same numbers.`;
    drawLegend(values, colors);
    chart.replaceChildren();
    if (!values.length) {
      const reason = state.show === "roof" ? "No roof was measured for these cases." : "There is nothing to draw.";
      chart.append(cell(reason, "p"));
      return;
    }
    const place = document.createElement("div"); // one of its own: an earlier chart may still be on its way
    chart.append(place);
    const options = { mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, tooltip: false };
    window.vegaEmbed(place, chartSpec(values, state.show, chart.clientWidth, colors), options);
  }

  // ---- All of it ----

  function draw() {
    settle();
    history.replaceState(null, "", addressOfState());
    fillForm();
    const cases = ordered(casesChosen());
    element("machine").textContent = `${machine().label}; measured ${machine().date}.`;
    element("summary").textContent = summaryOf(cases);
    Object.assign(element("download"), { href: machine().csv });
    drawTable(cases);
    drawChart(cases);
  }

  function changed(event) {
    const { id, name, value } = event.target;
    if (SELECTS.includes(id)) state[id] = value;
    if (name === "show") state.show = value;
    if (name === "peer") {
      state.peers = [...element("peers").querySelectorAll("input:checked")].map((box) => box.value);
    }
    settle();
    if (id === "suite" || id === "cpu") {
      if (!peers().length) state.peers = null;
      narrow();
    }
    draw();
  }

  function start() {
    state = stateOfAddress();
    const isGiven = location.hash.length > 1;
    settle();
    if (!isGiven) narrow();
    draw();
  }

  if (documentation) Object.assign(element("documentation"), { href: documentation, hidden: false });
  element("choice").addEventListener("change", changed);
  window.addEventListener("hashchange", start);
  dark.addEventListener("change", draw);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) draw();
    width = window.innerWidth;
  });
  start();
}
