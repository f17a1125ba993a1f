(python_s, operator_s) => {
  const made = T.source.timeCell({most: 1, meta: {python_s: {}}}, {python_s, operator_s});
  return [made.title.split('\n')[0], made.textContent];
}
