(() => {
  const root = {kind: 'all', value: 1.04, parent: null};
  const names = (some) => some.map((one) => T.python.nodeName(one)).join(' ');
  T.python.calls = INDEXED;
  const nodes = T.python.searched(T.python.layOut(INDEXED, root, 40, 0, false), 'inner',
    true);
  return nodes.map((one) => [T.python.nodeName(one), names(one.children),
    names(nodes.filter((other) => other.parent === one))]);
})()
