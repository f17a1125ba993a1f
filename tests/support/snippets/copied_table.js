(async () => {
  const texts = [];
  Object.defineProperty(navigator, 'clipboard', {configurable: true,
    value: {writeText: async (text) => { texts.push(text); }}});
  seek('self>4ms');
  await lab.rest(120);
  press('CSV'); press('Markdown');
  await lab.rest();
  texts.push(box.querySelector('.copy').textContent);
  navigator.clipboard.writeText = () => Promise.reject(new Error('no'));
  box.querySelectorAll('.copy')[0].click();
  await lab.rest();
  const dialog = document.querySelector('dialog');
  texts.push(dialog.open, dialog.querySelector('textarea').value.split('\n')[0]);
  texts.push(document.activeElement.tagName);
  dialog.querySelector('button').click();
  for (let n = 0; n < 500 && document.querySelector('dialog'); n++) await lab.rest(10);
  texts.push(document.querySelectorAll('dialog').length);
  delete navigator.clipboard;
  return texts;
})()
