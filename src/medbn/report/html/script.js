"use strict";
(() => {
  // Sorting: a click sorts in ascending order, the next in descending order, the third restores the first order.
  const key = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
    if (cell.querySelector(".nothing")) return null;
    return cell.textContent.trim() || null;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
        const order = next === undefined ? "ascending" : next;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        const rows = [...original];
        if (order) {
          head.setAttribute("aria-sort", order);
          const sign = order === "ascending" ? 1 : -1;
          rows.sort((first, second) => {
            const a = key(first, column);
            const b = key(second, column);
            // Cells without a measure stay at the end in both orders.
            if (a === null || b === null) return (a === null) - (b === null);
            return sign * compare(a, b);
          });
        }
        table.classList.toggle("sorted", Boolean(order));
        body.append(...rows);
      });
    });
  }

  // Cards: on a phone, a table that would be cut off shows each row as a card.
  const cuttable = "table.sortable, table.heat";
  const tables = [...document.querySelectorAll(cuttable)];
  for (const table of document.querySelectorAll("table.heat")) {
    const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    for (const cell of table.querySelectorAll("tbody td")) cell.dataset.column = names[cell.cellIndex];
  }
  const fit = (table) => {
    table.classList.remove("cards");
    const box = table.parentElement;
    if (innerWidth <= 640 && box.scrollWidth > box.clientWidth) table.classList.add("cards");
  };
  const fitAll = () => tables.forEach(fit);
  addEventListener("resize", fitAll);
  for (const details of document.querySelectorAll("details")) {
    details.addEventListener("toggle", () => details.querySelectorAll(cuttable).forEach(fit));
  }
  fitAll();

  // Numbers: a click lists the cells of the store that a number is made from.
  const stored = document.getElementById("cells");
  if (stored) {
    const { columns, texts, rows } = JSON.parse(stored.textContent);
    const dialog = document.querySelector("dialog");
    const fill = (row, tag, values) =>
      row.replaceChildren(
        ...values.map((value, column) => {
          const cell = document.createElement(tag);
          cell.textContent = value;
          if (tag === "td") cell.dataset.column = columns[column];
          return cell;
        })
      );
    document.addEventListener("click", (event) => {
      const number = event.target.closest("button.number");
      if (!number) return;
      const chosen = number.dataset.cells.split(" ").flatMap((span) => {
        const [first, last = first] = span.split("-").map(Number);
        return rows.slice(first, last + 1);
      });
      dialog.querySelector("h2").textContent = number.textContent;
      dialog.querySelector("p").textContent =
        `is made from ${chosen.length === 1 ? "one cell" : `${chosen.length} cells`} of the store.`;
      fill(dialog.querySelector("thead tr"), "th", columns);
      dialog.querySelector("tbody").replaceChildren(
        ...chosen.map(([key, ...about]) => {
          const row = document.createElement("tr");
          fill(row, "td", [key, ...about.map((place) => texts[place])]);
          return row;
        })
      );
      dialog.showModal();
      const table = dialog.querySelector("table");
      table.classList.remove("cards");
      if (innerWidth <= 640) table.classList.add("cards");
    });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }

  // Folded sections: a link to one opens it, and paper shows all of them.
  const unfold = (hash) => {
    const section = document.getElementById(hash.slice(1));
    const details = section && section.querySelector(":scope > details.fold");
    if (details) details.open = true;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) unfold(link.hash);
  });
  addEventListener("hashchange", () => unfold(location.hash));
  unfold(location.hash);
  addEventListener("beforeprint", () => document.querySelectorAll("details.fold").forEach((d) => (d.open = true)));

  // Copying: a page from a file may not use the clipboard; then the text is selected instead.
  for (const button of document.querySelectorAll("button.copy")) {
    const code = button.parentElement.querySelector("code");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }

  // The contents mark the current section: the last one whose top is in the top third of the window or above it.
  const links = new Map(
    [...document.querySelectorAll("nav a")].map((link) => [document.getElementById(link.hash.slice(1)), link])
  );
  const follow = () => {
    let current = null;
    for (const section of links.keys()) {
      if (section.getBoundingClientRect().top < innerHeight / 3) current = section;
    }
    for (const [section, link] of links) {
      if (section === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  addEventListener("scroll", follow, { passive: true });
  follow();
})();
