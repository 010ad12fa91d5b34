'use strict';
(() => {
  const main = document.getElementById('main');
  const index = document.getElementById('index');
  const search = document.getElementById('search');
  let api;

  // make('p.note', 'text', child…): an element with classes and children. Text is never parsed as
  // HTML.
  const make = (what, ...children) => {
    const [tag, ...classes] = what.split('.');
    const element = document.createElement(tag);
    if (classes.length) element.className = classes.join(' ');
    for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
    return element;
  };

  // Text in which `words` are code.
  const prose = (text) => (text || '').split('`').map((part, index) => (index % 2 ? make('code', part) : part));

  const resolve = (value) => {
    let seen = 0;
    while (value && value.$ref && seen++ < 8) {
      const { $ref, ...own } = value;
      value = { ...$ref.slice(2).split('/').reduce((at, part) => (at || {})[part], api), ...own };
    }
    return value || {};
  };

  // Splits a schema that allows `null` into the other schema and a flag.
  const unwrap = (schema) => {
    let found = resolve(schema);
    let nullable = false;
    if (found.oneOf && found.oneOf.some((choice) => choice.type === 'null')) {
      nullable = true;
      const outer = found.description;
      found = resolve(found.oneOf.find((choice) => choice.type !== 'null'));
      if (outer) found = { ...found, description: outer };
    }
    if (Array.isArray(found.type)) {
      nullable = nullable || found.type.includes('null');
      found = { ...found, type: found.type.filter((type) => type !== 'null').join(' or ') };
    }
    return { schema: found, nullable };
  };

  const typeOf = (schema) => {
    const { schema: found, nullable } = unwrap(schema);
    const choices = found.oneOf || (found.type ? null : found.anyOf);
    let name = found.format === 'date-time' ? 'time' : found.type || 'any';
    if (choices) name = [...new Set(choices.map(typeOf))].join(' or ');
    if (found.type === 'array') name = `list of ${typeOf(found.items || {})}`;
    if (found.type === 'object' && typeof found.additionalProperties === 'object') name = `object of ${typeOf(found.additionalProperties)}`;
    return nullable ? `${name} or null` : name;
  };

  const bounds = (schema) => {
    const { schema: found } = unwrap(schema);
    const parts = [];
    const range = (low, high, unit) => {
      if (low !== undefined && high !== undefined) parts.push(`${low.toLocaleString('en')} to ${high.toLocaleString('en')}${unit}`);
      else if (high !== undefined) parts.push(`at most ${high.toLocaleString('en')}${unit}`);
    };
    range(found.minimum, found.maximum, '');
    range(found.minLength, found.maxLength, ' characters');
    range(found.minItems, found.maxItems, ' items');
    if (found.enum) parts.push(`one of ${found.enum.join(', ')}`);
    return parts.join('; ');
  };

  const partsOf = (schema) => {
    let { schema: found } = unwrap(schema);
    if (found.type === 'array') found = unwrap(found.items || {}).schema;
    if (found.type === 'object' && typeof found.additionalProperties === 'object') found = unwrap(found.additionalProperties).schema;
    const choices = (found.type ? null : found.anyOf) || found.oneOf || found.allOf;
    if (!found.properties && choices) return choices.map(resolve).find((choice) => choice.properties) || found;
    return found;
  };

  const field = (name, schema, required, place, description, depth) => {
    const { schema: found } = unwrap(schema);
    const note = description || found.description;
    const limits = bounds(schema);
    const item = make('li',
      make('span.name', name), place ? make('span.type', place) : null, make('span.type', typeOf(schema)),
      required ? make('span.required', 'required') : null,
      note ? make('span.note', prose(note)) : null, limits ? make('span.note.faint', limits) : null);
    const nested = partsOf(schema);
    if (nested.properties && depth < 4) item.append(fields(nested, depth + 1));
    return item;
  };

  const fields = (schema, depth = 0) => {
    const found = partsOf(schema);
    const required = new Set(found.required || []);
    return make('ul.fields', Object.entries(found.properties || {}).map(([name, own]) => field(name, own, required.has(name), '', '', depth)));
  };

  const example = (text) => {
    const button = make('button', 'Copy');
    button.type = 'button';
    button.addEventListener('click', async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = 'Copied';
      } catch {
        const range = document.createRange();
        range.selectNodeContents(block);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = 'Selected';
      }
      setTimeout(() => { button.textContent = 'Copy'; }, 1500);
    });
    const block = make('pre', text);
    block.tabIndex = 0;
    return make('div.example', block, button);
  };

  const shown = (value) => (typeof value === 'string' ? value : JSON.stringify(value, null, 2));
  const bodyOf = (of) => Object.entries((of && of.content) || {})[0] || [];
  const needsKey = (operation) => {
    const choices = operation.security || api.security || [];
    if (!choices.some((choice) => Object.keys(choice).length)) return 'no';
    return choices.some((choice) => !Object.keys(choice).length) ? 'maybe' : 'yes';
  };
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

  const curl = (method, path, operation) => {
    const given = (operation.parameters || []).filter((parameter) => parameter.example !== undefined);
    const query = new URLSearchParams();
    let url = path;
    const lines = [];
    for (const { name, in: place, example: value } of given) {
      if (place === 'path') url = url.replace(`{${name}}`, encodeURIComponent(value));
      if (place === 'query') query.set(name, value);
      if (place === 'header') lines.push(`-H ${quoted(`${name}: ${value}`)}`);
    }
    if (query.size) url += `?${query}`;
    if (needsKey(operation) === 'yes') lines.unshift('-H "X-API-Key: $PACEGATE_KEY"');
    const [type, body] = bodyOf(operation.requestBody);
    if (body && body.example !== undefined) lines.push(`-H 'Content-Type: ${type}'`, `-d ${quoted(JSON.stringify(body.example))}`);
    const verb = method === 'GET' || (method === 'POST' && body) ? '' : ` -X ${method}`;
    return [`curl -s${verb} ${quoted(location.origin + url)}`, ...lines].join(' \\\n  ');
  };

  const answer = (status, response) => {
    const found = resolve(response);
    const [, body] = bodyOf(found);
    const inside = make('div.inside');
    const headers = Object.entries(found.headers || {});
    if (headers.length) {
      inside.append(make('h4', 'Headers'), make('ul.fields', headers.map(([name, header]) => {
        const found = resolve(header);
        return field(name, found.schema || {}, false, '', found.description, 9);
      })));
    }
    if (body) {
      const list = body.schema ? fields(body.schema) : null;
      if (list && list.children.length) inside.append(make('h4', 'Body'), list);
      if (body.example !== undefined) inside.append(make('h4', 'Example'), example(shown(body.example)));
    }
    const box = make('details.answer', make('summary', make('strong', status), ' ', prose(found.description)), inside);
    box.open = status.startsWith('2') && Boolean(body);
    return box;
  };

  const fill = (inside, method, path, operation) => {
    if (operation.description) inside.append(make('p', prose(operation.description)));
    const key = { yes: 'Requires an API key.', maybe: 'Requires an API key if the service is configured to.', no: 'Requires no API key.' }[needsKey(operation)];
    inside.append(make('p.faint', key), example(curl(method, path, operation)));
    if ((operation.parameters || []).length) {
      inside.append(make('h3', 'Parameters'), make('ul.fields', operation.parameters.map((parameter) =>
        field(parameter.name, parameter.schema || {}, parameter.required, parameter.in, parameter.description, 9))));
    }
    const [, body] = bodyOf(operation.requestBody);
    if (body) {
      inside.append(make('h3', 'Body'));
      const description = unwrap(body.schema || {}).schema.description;
      if (description) inside.append(make('p', prose(description)));
      inside.append(fields(body.schema || {}));
    }
    inside.append(make('h3', 'Responses'), Object.entries(operation.responses).map(([status, response]) => answer(status, response)).reduce((all, one) => { all.append(one); return all; }, make('div')));
  };

  const operations = [];

  const show = () => {
    document.getElementById('state').remove();
    document.title = `${api.info.title} API`;
    document.getElementById('title').textContent = api.info.title;
    document.getElementById('version').textContent = api.info.version;
    main.append(make('p', prose(api.info.description)), make('p.faint', `Licence: ${api.info.license.name}`));
    for (const tag of api.tags) {
      const section = make('section', make('h2', tag.name), make('p.faint', prose(tag.description)));
      const list = make('div', make('h2', tag.name));
      for (const [path, item] of Object.entries(api.paths)) {
        for (const [verb, operation] of Object.entries(item)) {
          if (!(operation.tags || []).includes(tag.name)) continue;
          const method = verb.toUpperCase();
          const inside = make('div.inside');
          const box = make(`details.operation${operation.deprecated ? '.deprecated' : ''}`,
            make('summary', make(`span.method.${verb}`, method), make('span.path', path), make('span.summary', operation.summary),
              operation.deprecated ? make('span.badge', 'deprecated') : null), inside);
          box.id = operation.operationId;
          box.addEventListener('toggle', () => {
            if (box.open && !inside.childNodes.length) fill(inside, method, path, operation);
            if (box.open) history.replaceState(null, '', `#${box.id}`);
          });
          const link = make('a', operation.summary);
          link.href = `#${box.id}`;
          link.addEventListener('click', () => { box.open = true; });
          section.append(box);
          list.append(link);
          const words = [method, path, operation.summary, operation.description, operation.operationId, tag.name].join(' ').toLowerCase();
          operations.push({ box, link, words, groups: [section, list] });
        }
      }
      main.append(section);
      index.append(list);
    }
    const wanted = location.hash && document.getElementById(location.hash.slice(1));
    if (wanted) {
      if (wanted.tagName === 'DETAILS') wanted.open = true;
      wanted.scrollIntoView();
    }
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const used = new Set();
    for (const operation of operations) {
      const fits = words.every((word) => operation.words.includes(word));
      operation.box.hidden = operation.link.hidden = !fits;
      if (fits) operation.groups.forEach((group) => used.add(group));
    }
    for (const { groups } of operations) groups.forEach((group) => { group.hidden = !used.has(group); });
  };

  const remember = (theme) => { try { localStorage.setItem('theme', theme); } catch { /* the theme applies to this visit only */ } };
  const remembered = () => { try { return localStorage.getItem('theme'); } catch { return null; } };
  const root = document.documentElement;
  if (['light', 'dark'].includes(remembered())) root.dataset.theme = remembered();
  document.getElementById('theme').addEventListener('click', () => {
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
    remember(root.dataset.theme);
  });
  search.addEventListener('input', filter);
  document.addEventListener('keydown', (event) => {
    if (event.key === '/' && document.activeElement !== search) { event.preventDefault(); search.focus(); }
    if (event.key === 'Escape' && document.activeElement === search) { search.value = ''; filter(); search.blur(); }
  });

  fetch('openapi.json').then((response) => {
    if (!response.ok) throw new Error(`status ${response.status}`);
    return response.json();
  }).then((document_) => { api = document_; show(); }).catch((error) => {
    document.getElementById('state').textContent = `The document could not be loaded: ${error.message}`;
  });
})();
