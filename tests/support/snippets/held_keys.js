['', 'ctrlKey', 'metaKey', 'shiftKey'].map((key) => {
  const event = new MouseEvent('click', {bubbles: true, cancelable: true,
    ...(key ? {[key]: true} : {})});
  let seen = null;
  addEventListener('click', (one) => { seen = one.defaultPrevented; one.preventDefault();
    }, {once: true});
  document.querySelector('#views a').dispatchEvent(event);
  return seen;
})
