(() => {
  const made = TABLE, records = T.table.asRecords(made);
  const words = (row) => Object.values(row).filter((one) => typeof one === 'string');
  const lower = (row) => words(row).join('\n').toLowerCase();
  return TEXTS.map((typed) => {
    const test = T.table.seeker(typed, made.columns);
    return test && records.flatMap((row, at) => test(row, lower(row)) ? [at] : []);
  });
})()
