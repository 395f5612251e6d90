"use strict";
(() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const PAGE = { table: 100, curves: 60 }, COLOURS = 8, DASHES = ["", "7 4", "2 3", "9 3 2 3"];
  const STATES = ["running", "finished", "stopped", "interrupted", "begun"];
  const by = id => document.getElementById(id);
  const look = { text: "", states: new Set(STATES), figure: "loss", log: false, view: "table", sort: "when", down: true, page: 0, at: -1 };
  const chosen = new Map();  // name -> number of its colour, kept as long as it is chosen
  let shown = [];

  // Elements, made without ever reading text as HTML.
  const fill = (made, attributes, children) => {
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "on") for (const [name, act] of Object.entries(value)) made.addEventListener(name, act);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children.filter(child => child !== null));
    return made;
  };
  const make = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const draw = (name, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

  // Values as people read them.
  const brief = value => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return Array.isArray(value) ? value.join(", ") : String(value);
    if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
    return Math.abs(value) >= 1e4 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : String(Number(value.toPrecision(4)));
  };
  const short = value => value >= 1e6 ? brief(value / 1e6) + "M" : value >= 1e4 ? brief(value / 1e3) + "k" : brief(value);
  const date = seconds => seconds ? new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") : "–";
  const many = (count, word, words) => `${count.toLocaleString("en")} ${count === 1 ? word : words || word + "s"}`;
  const settingsOf = run => ({ ...data.common, ...run.settings });

  // Which runs are shown, and in which order.
  const words = run => run.words ??= `${run.name} ${run.commit}`.toLowerCase();
  const fits = (run, term) => {
    const [, name, value] = term.match(/^([^=]+)=(.*)$/) || [];
    if (name === undefined) return words(run).includes(term);
    const settings = settingsOf(run);
    return Object.keys(settings).some(key => key.endsWith(name) && String(brief(settings[key])).toLowerCase().startsWith(value)
      || key.endsWith(name) && String(settings[key]).toLowerCase().startsWith(value));
  };
  const valueOf = (run, column) => {
    if (column in data.figures) return run.best[column] ?? null;
    if (column === "state") return STATES.indexOf(run.state);
    return run[column];
  };
  const choose = () => {
    const terms = look.text.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = data.runs.filter(run => look.states.has(run.state) && terms.every(term => fits(run, term)));
    const side = look.down ? -1 : 1;
    kept.sort((one, other) => {
      const a = valueOf(one, look.sort), b = valueOf(other, look.sort);
      if (a === null || b === null) return (a === null) - (b === null);  // what is not known comes last
      return (a < b ? -1 : a > b ? 1 : 0) * side || (one.name < other.name ? -1 : 1);
    });
    return kept;
  };

  // Axes.
  const span = (values, log) => {
    const known = values.filter(value => Number.isFinite(value) && (!log || value > 0));
    if (!known.length) return [log ? 0.1 : 0, 1];
    let low = Infinity, high = -Infinity;
    for (const value of known) { if (value < low) low = value; if (value > high) high = value; }
    if (log) return low === high ? [low / 2, high * 2] : [low, high];
    const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  };
  const scale = ([low, high], from, to, log) => {
    const bend = log ? Math.log10 : value => value, start = bend(low), width = bend(high) - start || 1;
    return value => from + (bend(value) - start) / width * (to - from);
  };
  const ticks = ([low, high], log, count) => {
    if (log) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
        for (const part of [1, 2, 5]) { const value = part * 10 ** power; if (value >= low * 0.999 && value <= high * 1.001) found.push(value); }
      if (found.length > 2) return found;  // else the range is short, and even steps serve it better
    }
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(part => part * power).find(part => part >= rough), found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
    return found;
  };
  const line = ([xs, ys], x, y, log) => {
    let path = "", down = false;
    xs.forEach((at, index) => {
      if (log && !(ys[index] > 0)) { down = false; return; }
      path += `${down ? "L" : "M"}${x(at).toFixed(1)} ${y(ys[index]).toFixed(1)}`;
      down = true;
    });
    return path.includes("L") ? path : path + (path ? "h.01" : "");
  };
  const spark = (run, width, height, xs, ys) => {
    const curve = run.curves[look.figure];
    const svg = draw("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: "none", "aria-hidden": "true" });
    if (!curve) return svg;
    const x = scale(xs || [0, Math.max(...curve[0])], 2, width - 3, false), y = scale(ys || span(curve[1], look.log), height - 3, 3, look.log);
    const colour = chosen.has(run.name) ? `stroke: ${ink(chosen.get(run.name))}` : null;
    svg.append(draw("path", { d: line(curve, x, y, look.log), style: colour, "vector-effect": "non-scaling-stroke" }));
    const last = curve[1].at(-1);
    if (!look.log || last > 0) svg.append(draw("path", { class: "last", d: `M${x(curve[0].at(-1))} ${y(last)}h.01`, "vector-effect": "non-scaling-stroke" }));
    return svg;
  };

  // The table.
  const figureColumns = () => Object.keys(data.figures).filter(name => name !== "train_loss" && data.runs.some(run => name in run.best));
  const columns = () => [
    ["name", "run", false], ["state", "state", false], ["events", "events", true], [null, data.figures[look.figure].title, false],
    ...figureColumns().map(name => [name, name === "loss" ? "best loss" : data.figures[name].title, true]), ["when", "last written", false],
  ];
  const sortBy = name => {
    look.down = look.sort === name ? !look.down : ["when", "f1", "events"].includes(name);
    look.sort = name;
    look.page = 0;
    refresh();
  };
  const heads = () => by("heads").replaceChildren(make("th", { scope: "col" }, make("span", { "aria-label": "chosen" }, "")),
    ...columns().map(([name, title, number]) => make("th", { scope: "col", class: number ? "number" : null,
      "aria-sort": name === look.sort ? (look.down ? "descending" : "ascending") : null },
      name ? make("button", { type: "button", on: { click: () => sortBy(name) } }, title) : title)),
    make("th", { scope: "col" }, "pages"));
  const progress = run => run.of && run.state !== "finished" ? `${short(run.events)} of ${short(run.of)}` : short(run.events);
  const links = pages => pages.map(([label, address]) => make("a", { href: address }, label));
  const bestOf = name => {
    const values = shown.map(run => run.best[name]).filter(value => value !== undefined);
    return values.length > 1 ? values.reduce((one, other) => data.figures[name].small === one < other ? one : other) : null;
  };
  const rowOf = (run, index, best) => make("tr", { class: `${chosen.has(run.name) ? "picked " : ""}${index === look.at ? "at" : ""}`, "data-index": index },
    make("td", {}, make("input", { type: "checkbox", "aria-label": `choose ${run.name}`, checked: chosen.has(run.name), on: { change: () => toggle(run.name) } })),
    make("th", { scope: "row", title: run.name }, run.name),
    make("td", {}, make("span", { class: `state ${run.state}` }, run.state)),
    make("td", { class: "number" }, progress(run)),
    make("td", {}, spark(run, 120, 26)),
    ...figureColumns().map(name => make("td", { class: best[name] !== null && run.best[name] === best[name] ? "number best" : "number" }, brief(run.best[name]))),
    make("td", { class: "muted" }, date(run.when)),
    make("td", {}, ...links(run.pages)));
  const cardOf = (run, index, xs, ys) => make("button", { type: "button", class: `card ${chosen.has(run.name) ? "picked " : ""}${index === look.at ? "at" : ""}`,
    "aria-pressed": String(chosen.has(run.name)), title: run.name, "data-index": index, on: { click: () => toggle(run.name) } },
    make("b", {}, make("bdi", {}, run.name)), spark(run, 240, 100, xs, ys),
    make("small", {}, make("span", { class: `state ${run.state}` }, progress(run)), make("span", {}, brief(run.best[look.figure]))));

  const toggle = name => {
    if (chosen.has(name)) chosen.delete(name);
    else {
      const taken = new Set(chosen.values());
      let number = 0;
      while (taken.has(number)) number++;
      chosen.set(name, number);
    }
    refresh();
  };

  const refresh = () => {
    shown = choose();
    const size = PAGE[look.view], pages = Math.max(Math.ceil(shown.length / size), 1);
    look.page = Math.min(look.page, pages - 1);
    look.at = Math.min(look.at, shown.length - 1);
    const first = look.page * size, part = shown.slice(first, first + size);
    by("count").textContent = shown.length === data.runs.length ? many(shown.length, "run") + "." : `${many(shown.length, "run")} of ${data.runs.length.toLocaleString("en")}.`;
    by("table").hidden = look.view !== "table";
    by("curves").hidden = look.view !== "curves";
    if (look.view === "table") {
      heads();
      const best = Object.fromEntries(figureColumns().map(name => [name, bestOf(name)]));
      by("rows").replaceChildren(...part.map((run, index) => rowOf(run, first + index, best)));
    } else {  // one axis for all, so that they compare
      const curves = part.map(run => run.curves[look.figure]).filter(Boolean);
      const xs = [0, curves.reduce((most, curve) => Math.max(most, curve[0].at(-1)), 1)], ys = span(curves.flatMap(curve => curve[1]), look.log);
      by("count").textContent += ` All on the same axes: events to ${short(xs[1])}, ${data.figures[look.figure].title} ${brief(ys[0])} to ${brief(ys[1])}.`;
      by("curves").replaceChildren(...part.map((run, index) => cardOf(run, first + index, xs, ys)));
    }
    by("pages").hidden = pages < 2;
    by("place").textContent = `${(first + 1).toLocaleString("en")} to ${(first + part.length).toLocaleString("en")}`;
    by("back").disabled = look.page === 0;
    by("next").disabled = look.page === pages - 1;
    compare();
  };

  // Chosen runs over each other.
  const ink = number => `var(--c${number % COLOURS})`;
  const dash = number => DASHES[Math.floor(number / COLOURS) % DASHES.length];
  const compare = () => {
    const runs = data.runs.filter(run => chosen.has(run.name));
    by("nothing").hidden = runs.length > 0;
    by("chosen").hidden = by("bar").hidden = runs.length === 0;
    by("how-many").textContent = `${many(runs.length, "run")} chosen`;
    if (!runs.length) return;
    by("legend").replaceChildren(...runs.map(run => make("li", {}, make("button", { type: "button", title: "leave it out", style: `--ink: ${ink(chosen.get(run.name))}`,
      on: { click: () => toggle(run.name) } }, `${run.name} ×`))));
    by("overlay").replaceChildren(overlay(runs));
    differences(runs);
  };

  const overlay = runs => {
    const width = 1100, height = 380, left = 70, right = 15, top = 12, bottom = 42, title = data.figures[look.figure].title;
    const drawn = runs.filter(run => run.curves[look.figure]);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} of the chosen runs against events` });
    const ys = span(drawn.flatMap(run => run.curves[look.figure][1]), look.log), xs = [0, Math.max(...drawn.map(run => run.curves[look.figure][0].at(-1)), 1)];
    const x = scale(xs, left, width - right, false), y = scale(ys, height - bottom, top, look.log);
    for (const value of ticks(ys, look.log, 6)) svg.append(draw("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }), draw("text", { class: "end", x: left - 8, y: y(value) + 4 }, brief(value)));
    for (const value of ticks(xs, false, 8)) svg.append(draw("text", { class: "middle", x: x(value), y: height - bottom + 18 }, short(value)));
    svg.append(draw("path", { class: "frame", d: `M${left} ${top}V${height - bottom}H${width - right}` }), draw("text", { class: "label middle", x: (left + width - right) / 2, y: height - 6 }, "events"),
      draw("text", { class: "label middle", transform: `translate(16 ${(top + height - bottom) / 2}) rotate(-90)` }, title));
    if (!drawn.length) svg.append(draw("text", { class: "middle", x: width / 2, y: height / 2 }, `none of them has a ${title}`));
    for (const run of drawn) svg.append(draw("path", { class: "curve", d: line(run.curves[look.figure], x, y, look.log), style: `stroke: ${ink(chosen.get(run.name))}`, "stroke-dasharray": dash(chosen.get(run.name)) || null }));
    for (const run of drawn) {
      const [where, values] = run.curves[look.figure];
      if (!look.log || values.at(-1) > 0) svg.append(draw("path", { class: "dot", d: `M${x(where.at(-1))} ${y(values.at(-1))}h.01`, style: `stroke: ${ink(chosen.get(run.name))}` }));
    }
    const pointer = draw("path", { class: "pointer", visibility: "hidden" });
    svg.append(pointer);
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) * width / box.width;
      if (!drawn.length || at < left || at > width - right) { by("hint").hidden = true; pointer.setAttribute("visibility", "hidden"); return; }
      const events = xs[0] + (at - left) / (width - right - left) * (xs[1] - xs[0]);
      const told = drawn.map(run => {
        const [where, values] = run.curves[look.figure];
        let nearest = 0;
        where.forEach((value, index) => { if (Math.abs(value - events) < Math.abs(where[nearest] - events)) nearest = index; });
        return [values[nearest], `${run.name}: ${brief(values[nearest])} at ${short(where[nearest])}`];
      }).sort((one, other) => one[0] - other[0]).map(([, text]) => text);
      pointer.setAttribute("d", `M${at} ${top}V${height - bottom}`);
      pointer.setAttribute("visibility", "visible");
      hint(told.slice(0, 12).join("\n"), event);
    });
    svg.addEventListener("pointerleave", () => { by("hint").hidden = true; pointer.setAttribute("visibility", "hidden"); });
    return svg;
  };
  const hint = (text, event) => {
    const shownHint = by("hint");
    shownHint.textContent = text;
    shownHint.hidden = false;
    const box = shownHint.getBoundingClientRect(), below = event.clientY + 16;
    shownHint.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4)) + "px";
    shownHint.style.top = (below + box.height < innerHeight ? below : Math.max(4, event.clientY - box.height - 12)) + "px";
  };

  const differences = runs => {
    const all = runs.map(settingsOf), names = [...new Set(all.flatMap(Object.keys))].sort();
    const differing = names.filter(name => all.some(settings => JSON.stringify(settings[name]) !== JSON.stringify(all[0][name])));
    const row = (title, cells) => make("tr", {}, make("th", { scope: "row" }, title), ...cells);
    const part = title => make("tr", { class: "part" }, make("th", { scope: "rowgroup", colspan: runs.length + 1 }, title));
    const figures = Object.keys(data.figures).filter(name => runs.some(run => name in run.best)).map(name => {
      const values = runs.map(run => run.best[name]).filter(value => value !== undefined), best = data.figures[name].small ? Math.min(...values) : Math.max(...values);
      return row(data.figures[name].title, runs.map(run => make("td", { class: runs.length > 1 && run.best[name] === best ? "number best" : "number" }, brief(run.best[name]))));
    });
    const same = runs.length > 1 ? (differing.length ? `settings that differ (${names.length - differing.length} are the same)` : "their settings are the same") : "choose another run to see in what they differ";
    by("differences").replaceChildren(
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, ""), ...runs.map(run => make("th", { scope: "col", class: "number", title: run.name, style: `--ink: ${ink(chosen.get(run.name))}` }, run.name)))),
      make("tbody", {}, part("best figures"), ...figures, row("events", runs.map(run => make("td", { class: "number" }, progress(run)))),
        row("commit", runs.map(run => make("td", { class: "number" }, run.commit || "–"))), part(same),
        ...differing.map(name => row(name, all.map(settings => make("td", { class: "number" }, brief(settings[name])))))));
  };

  // Studies, commands, and the top of the page.
  const studies = () => {
    by("no-studies").hidden = data.studies.length > 0;
    by("study-rows").closest(".scroll").hidden = data.studies.length === 0;
    by("study-rows").replaceChildren(...data.studies.map(study => make("tr", {},
      make("th", { scope: "row" }, study.name), make("td", {}, make("span", { class: `state ${study.state}` }, study.problem ? `unreadable: ${study.problem}` : study.state)),
      make("td", { class: "number" }, `${study.trials.toLocaleString("en")} of ${brief(study.of)}`),
      make("td", { class: "number" }, study.best === null ? "–" : `${brief(study.best)} (trial ${study.best_trial})`),
      make("td", {}, study.objective), make("td", { class: "muted" }, [study.search, study.scheduler].filter(Boolean).join(", ")),
      make("td", {}, ...links(study.pages), make("button", { type: "button", on: { click: () => { look.text = by("filter").value = study.name + "/"; look.page = 0; refresh(); by("runs").scrollIntoView(); } } }, "its runs")))));
  };
  const quoted = text => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const top = () => {
    const counts = STATES.map(state => [state, data.runs.filter(run => run.state === state).length]).filter(([, count]) => count);
    by("title").textContent = many(data.runs.length, "run") + (data.studies.length ? ` and ${many(data.studies.length, "study", "studies")}` : "");
    by("summary").textContent = data.runs.length ? counts.map(([state, count]) => `${count.toLocaleString("en")} ${state}`).join(", ") + "." : "No run lies here yet; ringflow train --out makes one.";
    by("stamp").textContent = `read ${data.written}`;
    by("states").replaceChildren(by("states").firstElementChild, ...counts.map(([state, count]) => make("label", {},
      make("input", { type: "checkbox", checked: look.states.has(state), on: { change: event => { look.states[event.target.checked ? "add" : "delete"](state); look.page = 0; refresh(); } } }), " ",
      make("span", { class: `state ${state}` }, `${state} ${count.toLocaleString("en")}`))));
    const dashboards = data.studies.filter(study => study.optuna).map(study => `optuna-dashboard ${quoted(`sqlite:///${data.folder}/${study.name}/optuna.db`)}`);
    const reports = data.studies.filter(study => !study.pages.length).map(study => `ringflow tune report ${quoted(`${data.folder}/${study.name}`)}`);
    by("commands").textContent = [`tensorboard --logdir ${quoted(data.folder)}`, ...dashboards, ...reports].join("\n");
    studies();
  };

  // Controls and keys.
  by("filter").addEventListener("input", event => { look.text = event.target.value; look.page = 0; look.at = -1; refresh(); });
  by("figure").addEventListener("change", event => { look.figure = event.target.value; refresh(); });
  by("log").addEventListener("change", event => { look.log = event.target.checked; refresh(); });
  const view = name => { look.view = name; look.page = 0; document.querySelector(`input[name=view][value=${name}]`).checked = true; refresh(); };
  for (const radio of document.querySelectorAll("input[name=view]")) radio.addEventListener("change", () => view(radio.value));
  for (const button of document.querySelectorAll(".clear")) button.addEventListener("click", () => { chosen.clear(); refresh(); });
  by("back").addEventListener("click", () => { look.page--; refresh(); });
  by("next").addEventListener("click", () => { look.page++; refresh(); });
  const move = by_ => {
    look.at = Math.max(0, Math.min(look.at + by_, shown.length - 1));
    look.page = Math.floor(look.at / PAGE[look.view]);
    refresh();
    document.querySelector(`[data-index="${look.at}"]`)?.scrollIntoView({ block: "nearest" });
  };
  addEventListener("keydown", event => {
    const typing = event.target.matches("input[type=search], select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") { look.text = by("filter").value = ""; if (!typing) chosen.clear(); by("filter").blur(); refresh(); return; }
    if (typing) return;
    if (event.key === "/") { event.preventDefault(); by("filter").focus(); }
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "x" && look.at >= 0) toggle(shown[look.at].name);
    else if (event.key === "v") view(look.view === "table" ? "curves" : "table");
  });

  const start = () => { if (!data.runs.some(run => look.figure in run.best)) look.figure = "train_loss"; by("figure").value = look.figure; top(); refresh(); };
  start();

  // A live page asks for newer data; what is chosen, sorted and filtered stays.
  const address = document.body.dataset.live;
  const again = async () => {
    try {
      const answer = await fetch(address, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const newer = await answer.json();
      const changed = JSON.stringify({ ...newer, written: "" }) !== JSON.stringify({ ...data, written: "", runs: data.runs.map(({ words, ...run }) => run) });
      data.written = newer.written;
      by("stamp").textContent = `read ${data.written}`;
      if (changed) { data = newer; top(); refresh(); }
    } catch { by("stamp").textContent = "the server does not answer; start ringflow browse again"; }
    setTimeout(again, 5000);
  };
  if (address) setTimeout(again, 5000);
})();
