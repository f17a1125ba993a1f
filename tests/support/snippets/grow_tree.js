(() => {
  const grow = (nodes, parent) => nodes.map(([path, self_s, inside]) => {
    const node = T.table.makeNode({path, self_s}, parent, path, path + ' KIND');
    node.part = path.startsWith('(');
    grow(inside, node);
    return node;
  });
  window.roots = grow(NODES, null);
  spec.roots = roots;
  spec.cell = (column, node, depth, toggle) => column.key === 'path' ? T.table.twigCell(node,
    depth, toggle, node.key, T.dom.el('button', {}, node.key)) : T.table.plainCell(column,
    node.record[column.key]);
  box.replaceChildren();
  window.tree = T.table.makeTree(box, spec);
  window.expanded = () => [...box.querySelectorAll('tbody tr')].map((one) =>
    one.getAttribute('aria-expanded'));
  window.at = () => [...box.querySelectorAll('tbody tr')].indexOf(document.activeElement);
  window.key = (name, more) => {
    const event = new KeyboardEvent('keydown', {key: name, bubbles: true, cancelable: true,
      ...more});
    document.activeElement.dispatchEvent(event);
    return [names(), at(), event.defaultPrevented];
  };
  return 0;
})()
