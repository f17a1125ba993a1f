(() => {
  const cells = (row) => [...row.cells].map((cell) =>
    cell.textContent.replace(/[▾▸]|#$/g, '')).join('|');
  const heads = [...one.querySelectorAll('th')].map((head) => head.textContent);
  const rows = [...one.tBodies[0].rows].slice(0, ROWS).map(cells);
  return [one.closest('[id]').id, heads.join(', '), ...rows];
})()
