"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const columns = data.columns, count = columns.number.length, SHADES = 8, MOST_LINES = 2000, PAGE = 200;
  document.documentElement.classList.add("js");
  const svgNamed = (name, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  };

  // Places on axes, as the drawings have them.
  const straight = (axis, value) => axis.log ? Math.log10(value) : value;
  const spread = trial => ((trial * 0.618034) % 1 - 0.5) * 0.6;
  const placed = (axis, trial, spreads) => {
    let value = columns[axis.column][trial];
    if (value === null) return NaN;
    if (axis.words && spreads) value += spread(trial);
    const low = straight(axis, axis.low), high = straight(axis, axis.high);
    const share = Math.min((straight(axis, value) - low) / (high - low || 1), 1);
    return axis.from + share * (axis.to - axis.from);
  };

  // Values as people read them.
  const parameters = data.parameters;
  const brief = value => {
    if (value === null) return "–";
    if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(5)));
  };
  const told = (column, trial) => {
    const value = columns[column][trial];
    if (column === "state") return data.states[value];
    if (column === "seconds") return brief(Number((value / 3600).toPrecision(4)));
    if (column === "events") return value.toLocaleString("en");
    if (column[0] === "p" && value !== null) {
      const options = parameters[Number(column.slice(1))].options;
      return options ? options[value] : brief(value);
    }
    return brief(value);
  };
  const described = trial => {
    const lines = [`trial ${trial}, ${told("state", trial)} at ${told("events", trial)} events`];
    data.objectives.forEach((name, index) => lines.push(`${name} ${told("o" + index, trial)}`));
    parameters.forEach((parameter, index) => {
      if (columns["p" + index][trial] !== null) lines.push(`${parameter.name} ${told("p" + index, trial)}`);
    });
    return lines.join("\n");
  };

  // Pointing at a trial shows it everywhere.
  const hint = document.getElementById("hint"), followers = [];
  let pointed = -1;
  const point = (trial, event) => {
    if (trial >= 0 && event) {
      hint.textContent = described(trial);
      hint.hidden = false;
      const box = hint.getBoundingClientRect();
      hint.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4)) + "px";
      const below = event.clientY + 16;
      hint.style.top = (below + box.height < innerHeight ? below : Math.max(4, event.clientY - box.height - 12)) + "px";
    } else hint.hidden = true;
    if (trial === pointed) return;
    pointed = trial;
    for (const follow of followers) follow(trial);
  };
  const inside = (svg, event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height];
  };

  for (const svg of document.querySelectorAll("svg[data-link]")) {
    const link = JSON.parse(svg.dataset.link);
    let places = null;
    const where = trial => [placed(link.x, trial, true), placed(link.y, trial, false)];
    const ring = svgNamed("circle", { class: "pointed", r: 8, visibility: "hidden" }, svg);
    followers.push(trial => {
      const [x, y] = trial < 0 ? [NaN, NaN] : where(trial);
      ring.setAttribute("visibility", x + y === x + y ? "visible" : "hidden");
      if (x + y === x + y) { ring.setAttribute("cx", x); ring.setAttribute("cy", y); }
    });
    svg.addEventListener("pointermove", event => {
      places ??= Array.from({ length: count }, (_, trial) => where(trial));
      const [x, y] = inside(svg, event);
      let nearest = -1, least = 144;
      places.forEach(([left, top], trial) => {
        const far = (left - x) ** 2 + (top - y) ** 2;
        if (far < least) { least = far; nearest = trial; }
      });
      point(nearest, event);
    });
    svg.addEventListener("pointerleave", () => point(-1));
  }

  // All settings side by side.
  const bands = new Map();
  const ranked = columns.number.filter(trial => columns.o0[trial] !== null).sort((a, b) => columns.o0[a] - columns.o0[b]);
  const chosen = trial => {
    for (const [axis, [low, high]] of bands) {
      const y = placed(axis, trial, false);
      if (!(y >= low && y <= high)) return false;
    }
    return true;
  };
  let refreshTable = () => {};
  const strands = document.querySelector("#strands svg");
  if (strands) {
    const axes = JSON.parse(strands.dataset.axes);
    const best = ranked.slice(0, MOST_LINES / 4), rest = ranked.slice(MOST_LINES / 4), room = MOST_LINES - best.length;
    const others = rest.length <= room ? rest : Array.from({ length: room }, (_, i) => rest[Math.floor(i * rest.length / room)]);
    const shown = [...best, ...others].map(trial => ({ trial, ys: axes.map(axis => placed(axis, trial, false)) }));
    const place = new Map(ranked.map((trial, index) => [trial, Math.floor(SHADES * index / ranked.length)]));
    const board = strands.parentElement, below = document.createElement("canvas"), above = document.createElement("canvas");
    board.insertBefore(below, strands);
    board.append(above);

    const pen = canvas => {
      const box = board.getBoundingClientRect(), ratio = devicePixelRatio || 1;
      canvas.width = Math.round(box.width * ratio);
      canvas.height = Math.round(box.height * ratio);
      const context = canvas.getContext("2d"), scale = canvas.width / strands.viewBox.baseVal.width;
      context.scale(scale, scale);
      context.lineJoin = "round";
      return context;
    };
    const trace = (context, ys) => {
      let down = false;
      ys.forEach((y, index) => {
        if (y !== y) { down = false; return; }
        if (down) context.lineTo(axes[index].at, y);
        else { context.moveTo(axes[index].at, y); context.lineTo(axes[index].at + 0.01, y); }
        down = true;
      });
    };
    const draw = () => {
      const context = pen(below), style = getComputedStyle(document.documentElement);
      const colour = name => style.getPropertyValue(name).trim();
      const kept = shown.filter(line => chosen(line.trial));
      if (bands.size) {
        context.strokeStyle = colour("--grid");
        context.lineWidth = 1;
        context.beginPath();
        for (const line of shown) trace(context, line.ys);
        context.stroke();
      }
      for (let shade = SHADES - 1; shade >= 0; shade--) {
        context.strokeStyle = colour("--v" + shade);
        context.lineWidth = shade === 0 ? 1.6 : 1.1;
        const lines = kept.filter(line => place.get(line.trial) === shade);
        context.globalAlpha = Math.max(0.12, Math.min(1, 60 / lines.length));
        for (const line of lines) {
          context.beginPath();
          trace(context, line.ys);
          context.stroke();
        }
      }
      context.globalAlpha = 1;
      lift(pointed);
    };
    const lift = trial => {
      const context = pen(above), style = getComputedStyle(document.documentElement);
      const show = (which, colour, width) => {
        if (which === null || which < 0 || !place.has(which)) return;
        context.strokeStyle = colour;
        context.lineWidth = width;
        context.beginPath();
        trace(context, axes.map(axis => placed(axis, which, false)));
        context.stroke();
      };
      if (data.best !== null && chosen(data.best)) show(data.best, style.getPropertyValue("--the-best").trim(), 2.6);
      show(trial, style.getPropertyValue("--hover").trim(), 2.4);
    };
    followers.push(lift);
    let waiting = false;
    const redraw = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; draw(); });
    };

    const report = document.getElementById("chosen");
    const changed = () => {
      const kept = bands.size ? ranked.filter(chosen) : ranked;
      const limited = shown.length < ranked.length
        ? ` Drawn are the best ${best.length} and ${others.length.toLocaleString("en")} of the others, evenly.` : "";
      report.textContent = (bands.size
        ? `${kept.length.toLocaleString("en")} of ${ranked.length.toLocaleString("en")} trials chosen` +
          (kept.length ? `; the best of them is trial ${kept[0]} with ${data.objectives[0]} ${told("o0", kept[0])}.` : ".")
        : `${ranked.length.toLocaleString("en")} trials with a value.`) + limited;
      redraw();
      refreshTable();
    };

    axes.forEach(axis => {
      const brush = svgNamed("rect", { class: "brush", x: axis.at - 8, width: 16, visibility: "hidden" }, strands);
      const catcher = svgNamed("rect", {
        class: "catch", x: axis.at - 14, width: 28, y: axis.to - 42, height: axis.from - axis.to + 52, tabindex: 0,
        role: "button", "aria-label": `Choose trials by ${axis.name}; arrow keys move the choice, Escape undoes it`,
      }, strands);
      const set = band => {
        if (band && band[1] - band[0] > 2) {
          bands.set(axis, band);
          brush.setAttribute("y", band[0]);
          brush.setAttribute("height", band[1] - band[0]);
          brush.setAttribute("visibility", "visible");
        } else {
          bands.delete(axis);
          brush.setAttribute("visibility", "hidden");
        }
        changed();
      };
      let from = null;
      const held = event => Math.max(axis.to - 1, Math.min(inside(strands, event)[1], axis.from + 1));
      catcher.addEventListener("pointerdown", event => {
        from = held(event);
        catcher.setPointerCapture(event.pointerId);
        event.preventDefault();
        catcher.focus({ preventScroll: true });
      });
      catcher.addEventListener("pointermove", event => {
        if (from === null) return;
        const to = held(event);
        set([Math.min(from, to), Math.max(from, to)]);
        event.stopPropagation();
      });
      catcher.addEventListener("pointerup", event => {
        if (from !== null && Math.abs(held(event) - from) <= 2) set(null);
        from = null;
      });
      catcher.addEventListener("keydown", event => {
        const step = (axis.from - axis.to) / 10;
        if (event.key === "Escape") { bands.clear(); strands.querySelectorAll(".brush").forEach(b => b.setAttribute("visibility", "hidden")); changed(); return; }
        if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
        event.preventDefault();
        const band = bands.get(axis), way = event.key === "ArrowUp" ? -step : step;
        const start = band ? band[0] + way : event.key === "ArrowUp" ? axis.from - 2 * step : axis.to;
        const size = band ? band[1] - band[0] : 2 * step;
        const kept = Math.max(axis.to - 1, Math.min(start, axis.from + 1 - size));
        set([kept, kept + size]);
      });
    });
    strands.addEventListener("pointermove", event => {
      const [x, y] = inside(strands, event);
      let right = axes.findIndex(axis => axis.at >= x);
      if (right < 0) right = axes.length - 1;
      const left = Math.max(right - 1, 0), gap = axes[right].at - axes[left].at, share = gap ? (x - axes[left].at) / gap : 0;
      let nearest = -1, least = 9;
      for (const line of shown) {
        const far = Math.abs(line.ys[left] + share * (line.ys[right] - line.ys[left]) - y);
        if (far < least && chosen(line.trial)) { least = far; nearest = line.trial; }
      }
      point(nearest, event);
    });
    strands.addEventListener("pointerleave", () => point(-1));
    new ResizeObserver(redraw).observe(board);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    queueMicrotask(changed);
  }

  // The table of all trials: sorted by a click, page by page.
  const table = document.getElementById("table"), body = table.tBodies[0], filter = document.getElementById("filter");
  const heads = [...table.tHead.rows[0].cells], where = document.getElementById("where");
  const before = document.getElementById("before"), after = document.getElementById("after");
  let sorted = { column: null, down: false }, page = 0;
  const state = data.states.indexOf("complete");
  const bestFirst = trial => [columns.o0[trial] === null, columns.state[trial] !== state, columns.o0[trial] ?? 0, trial];
  const compared = (a, b) => {
    if (sorted.column === null) {
      const left = bestFirst(a), right = bestFirst(b), at = left.findIndex((part, index) => part !== right[index]);
      return at < 0 ? 0 : left[at] - right[at];
    }
    const left = columns[sorted.column][a], right = columns[sorted.column][b];
    if (left === null || right === null) return (left === null) - (right === null) || a - b;
    return (sorted.down ? right - left : left - right) || a - b;
  };
  const fill = () => {
    const wanted = filter.value, word = data.states.indexOf(wanted);
    const rows = columns.number.filter(trial => !wanted || (wanted === "chosen" ? columns.o0[trial] !== null && chosen(trial) : columns.state[trial] === word));
    rows.sort(compared);
    page = Math.max(0, Math.min(page, Math.ceil(rows.length / PAGE) - 1));
    const shown = rows.slice(page * PAGE, (page + 1) * PAGE);
    body.replaceChildren(...shown.map(trial => {
      const row = document.createElement("tr");
      row.dataset.trial = trial;
      heads.forEach((head, index) => {
        const cell = document.createElement(index ? "td" : "th");
        if (!index) cell.scope = "row";
        if (head.dataset.column === "state") {
          const mark = document.createElement("span");
          mark.className = "state " + told("state", trial);
          mark.textContent = told("state", trial);
          cell.append(mark);
        } else {
          cell.className = "number";
          cell.textContent = told(head.dataset.column, trial);
        }
        row.append(cell);
      });
      return row;
    }));
    where.textContent = rows.length ? `${page * PAGE + 1}–${page * PAGE + shown.length} of ${rows.length.toLocaleString("en")}` : "none";
    before.disabled = page === 0;
    after.disabled = (page + 1) * PAGE >= rows.length;
    before.hidden = after.hidden = rows.length <= PAGE;
  };
  heads.forEach(head => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const column = head.dataset.column;
      sorted = { column, down: sorted.column === column && !sorted.down };
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      page = 0;
      fill();
    });
  });
  filter.addEventListener("change", () => { page = 0; fill(); });
  before.addEventListener("click", () => { page -= 1; fill(); });
  after.addEventListener("click", () => { page += 1; fill(); });
  body.addEventListener("pointerover", event => {
    const row = event.target.closest("tr");
    if (row && row.dataset.trial) point(Number(row.dataset.trial));
  });
  body.addEventListener("pointerleave", () => point(-1));
  followers.push(trial => {
    body.querySelector("tr.pick")?.classList.remove("pick");
    if (trial >= 0) body.querySelector(`tr[data-trial="${trial}"]`)?.classList.add("pick");
  });
  let later = 0;
  refreshTable = () => {
    clearTimeout(later);
    later = setTimeout(() => {
      if (bands.size) filter.value = "chosen";
      else if (filter.value === "chosen") filter.value = "";
      fill();
    }, 120);
  };
  if (count > 0) fill();
})();
