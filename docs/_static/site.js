/* On a telephone a row of a table becomes a card, whose lines are named by the header; site.css draws it. */
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    if (names.length < 3) continue;
    table.classList.add("cards");
    table.classList.toggle("many", names.length > 5);
    table.setAttribute("role", "table"); // cards are no table to a browser, and stay one to a screen reader
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, index) => {
        if (cell.closest("thead")) return cell.setAttribute("role", "columnheader");
        const content = document.createElement("div");
        content.append(...cell.childNodes);
        cell.append(content);
        cell.dataset.name = names[index] ?? "";
        cell.setAttribute("role", "cell");
        if (!content.textContent.trim()) cell.classList.add("empty");
      });
    }
  }
});
