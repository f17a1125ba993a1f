(() => {
  const node = (name, value, ...children) => {
    const one = {name, value, colour: 'red', told: value + ' B', children, parent: null, count: 1};
    for (const child of children) child.parent = one;
    return one;
  };
  const big = node('big', 60, node('inner', 41), node('rest of it', 5));
  const small = node('small', 22, node('leaf', 20));
  window.tree = node('root', 100, big, small, node('zero', 0, node('under zero', 3)),
    node('s1', 0.02), node('s2', 0.01, node('deep', 0.005)));
  return 0;
})()
