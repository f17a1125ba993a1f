for (const one of document.querySelectorAll('.view details')) one.open = true;
for (const one of document.querySelectorAll('.view tbody tr:nth-child(n + 3)')) one.remove()
