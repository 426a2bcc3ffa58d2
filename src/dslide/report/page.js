"use strict";
// Shows the values of the lines at the pointer, below the chart. Dragging over a part of a chart enlarges it.
const LEAST_DRAG = 8; // units of a drawing, from which a drag is meant
const NEAR = 40; // the farthest that a point's value is shown

for (const chart of document.querySelectorAll("svg.chart")) {
  const [left, right, first, last] = chart.dataset.x.split(" ").map(Number);
  const [bottom, top, low, high] = chart.dataset.y.split(" ").map(Number);
  const [xUnit, yUnit] = chart.dataset.units.split("|");
  const logarithmic = "log" in chart.dataset;
  const figure = chart.closest("figure"), readout = figure.querySelector("output");
  const button = figure.querySelector("button"), cursor = chart.querySelector(".cursor");
  const axes = chart.querySelector(".axes"), wholeAxes = [...axes.childNodes];
  // The part that is shown, in units of the drawing as it was made: a to b from left to right, c to d upwards.
  const whole = { a: left, b: right, c: bottom, d: top };
  let shown = whole;
  let dragged = null; // where dragging began

  const placeX = (x) => left + ((x - shown.a) / (shown.b - shown.a)) * (right - left);
  const placeY = (y) => bottom + ((y - shown.c) / (shown.d - shown.c)) * (top - bottom);
  const madeX = (x) => shown.a + ((x - left) / (right - left)) * (shown.b - shown.a); // the inverse of placeX
  const valueX = (x) => first + ((x - left) / (right - left)) * (last - first); // of a made place
  const valueY = (y) => {
    const share = (y - bottom) / (top - bottom);
    return logarithmic ? low * (high / low) ** share : low + share * (high - low);
  };
  const ofValueX = (value) => left + ((value - first) / (last - first)) * (right - left);
  const ofValueY = (value) => {
    const share = logarithmic ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return bottom + share * (top - bottom);
  };
  const text = (value) => Number(value.toPrecision(4)).toLocaleString("en-GB", { maximumSignificantDigits: 4 });
  const visible = (shape) => getComputedStyle(shape).display !== "none";

  // What is drawn, each with its points as they were made and a function that places it anew.
  const shapes = [...chart.querySelectorAll(".plot > *")].map((shape) => {
    const points = shape.points ? [...shape.points].map(({ x, y }) => [x, y]) : [];
    const number = (name) => Number(shape.getAttribute(name));
    const [x, y] = shape.tagName === "path" ? shape.getAttribute("transform").match(/[\d.-]+/g).map(Number)
      : [number(shape.tagName === "line" ? "x1" : "x"), number("y")];
    const set = (names, value) => names.forEach((name) => shape.setAttribute(name, value));
    return { shape, points, place: {
      polyline: () => set(["points"], points.map((each) => `${placeX(each[0])},${placeY(each[1])}`).join(" ")),
      polygon: () => set(["points"], points.map((each) => `${placeX(each[0])},${placeY(each[1])}`).join(" ")),
      line: () => set(["x1", "x2"], placeX(x)),
      path: () => set(["transform"], `translate(${placeX(x)} ${placeY(y)})`),
      text: () => { set(["x"], placeX(x - 8) + 8); set(["y"], placeY(y - 4) + 4); },
    }[shape.tagName] };
  });

  function show(part) {
    shown = part;
    shapes.forEach(({ place }) => place());
    chart.classList.toggle("zoomed", shown !== whole);
    button.hidden = shown === whole;
    axes.replaceChildren(...(shown === whole ? wholeAxes : grid()));
    clear();
  }

  function grid() {
    const xs = ticks(valueX(shown.a), valueX(shown.b), false).map((tick) => [tick, placeX(ofValueX(tick))]);
    const ys = ticks(valueY(shown.c), valueY(shown.d), logarithmic).map((tick) => [tick, placeY(ofValueY(tick))]);
    const line = (place) => element("line", { class: "grid", ...place });
    return [
      ...ys.flatMap(([tick, y]) => [line({ x1: left, x2: right, y1: y, y2: y }), label(left - 6, y + 4, tick, "end")]),
      ...xs.flatMap(([tick, x]) =>
        [line({ y1: top, y2: bottom, x1: x, x2: x }), label(x, bottom + 15, tick, "middle")]),
    ];
  }

  // Three to eight round numbers in a range, or 1, 2 and 5 times powers of ten if it has three of them at least.
  function ticks(from, to, powers) {
    if (powers) {
      const found = [];
      for (let power = Math.floor(Math.log10(from)); 10 ** power <= to; power++)
        found.push(...[1, 2, 5].map((times) => times * 10 ** power).filter((tick) => tick >= from && tick <= to));
      if (found.length >= 3) return found;
    }
    const power = 10 ** Math.floor(Math.log10((to - from) / 3));
    const step = [5, 2, 1].map((times) => times * power).find((each) => (to - from) / each >= 3);
    const found = [];
    for (let i = Math.ceil(from / step); i * step <= to; i++) found.push(i * step);
    return found;
  }

  function element(name, attributes) {
    const made = document.createElementNS(chart.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function label(x, y, tick, anchor) {
    const made = element("text", { x, y, "text-anchor": anchor });
    made.textContent = Number(tick.toPrecision(6)).toLocaleString("en-GB", { maximumSignificantDigits: 6 });
    return made;
  }

  // Where the pointer is, in units of the drawing, moved onto the x axis.
  function pointed(event) {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    return Math.min(Math.max(x, left), right);
  }

  const selection = element("rect", { class: "selection", y: top, height: bottom - top, width: 0 });
  chart.append(selection);
  chart.addEventListener("pointerdown", (event) => { if (event.button === 0) dragged = pointed(event); });
  chart.addEventListener("pointerup", drop);
  chart.addEventListener("pointercancel", () => { dragged = null; clear(); });
  chart.addEventListener("pointerleave", (event) => { drop(event); clear(); });
  chart.addEventListener("dblclick", () => show(whole));
  button.addEventListener("click", () => show(whole));

  // Enlarges what was dragged over, to the heights of its lines.
  function drop(event) {
    if (dragged === null) return;
    const [a, b] = [dragged, pointed(event)].sort((one, other) => one - other).map(madeX);
    const far = Math.abs(pointed(event) - dragged) >= LEAST_DRAG;
    dragged = null;
    selection.setAttribute("width", 0);
    const inside = shapes.filter(({ shape }) => visible(shape)).flatMap(({ points }) => heights(points, a, b));
    if (!far || !inside.length) return;
    const d = Math.min(...inside), c = Math.max(...inside), edge = Math.max(0.05 * (c - d), 2);
    show({ a, b, c: Math.min(c + edge, bottom), d: Math.max(d - edge, top) });
  }

  // The heights of points between a and b, and where their line enters and leaves.
  function heights(points, a, b) {
    const found = points.filter(([x]) => x >= a && x <= b).map(([, y]) => y);
    for (const [i, [x, y]] of points.slice(1).entries()) {
      const [beforeX, beforeY] = points[i];
      for (const edge of [a, b])
        if ((beforeX < edge) !== (x < edge)) found.push(beforeY + ((edge - beforeX) / (x - beforeX)) * (y - beforeY));
    }
    return found;
  }

  chart.addEventListener("pointermove", (event) => {
    const at = pointed(event);
    if (dragged !== null) {
      selection.setAttribute("x", Math.min(at, dragged));
      selection.setAttribute("width", Math.abs(at - dragged));
    }
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    readout.replaceChildren(part(`${text(valueX(madeX(at)))} ${xUnit}:`));
    for (const { shape, points } of shapes) {
      if (!shape.classList.contains("line") || !visible(shape)) continue;
      const y = near(points, at);
      if (y === null) continue;
      const value = part(`${shape.dataset.run} ${text(valueY(y))} ${yUnit}`);
      value.className = `letter ${shape.getAttribute("class").split(" ")[1]}`;
      readout.append(value);
    }
  });

  function clear() {
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
    readout.replaceChildren();
  }

  function part(words) {
    const span = document.createElement("span");
    span.textContent = words;
    return span;
  }

  // The y, as made, of the point nearest to a place on x; null if there is none nearby.
  function near(points, at) {
    const distance = (point) => Math.abs(placeX(point[0]) - at);
    const best = points.reduce((one, other) => (distance(other) < distance(one) ? other : one));
    return distance(best) < NEAR ? best[1] : null;
  }
}
