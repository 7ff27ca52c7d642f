def ways($all): . as $to
  | ([$all[] | select(.next_url // "" | split("#")[0] | IN($to[])).url] - $to) as $more
  | if $more == [] then $to else $to + $more | ways($all) end;
[INDEX(inputs; .url)[]] as $all
| $all[] | select(.kind) | . as $bad | ([.url] | ways($all)) as $urls
| $all[] | select(any((.links // [])[], (.assets // [])[]; IN($urls[])))
| "\($bad.url) \(.url)"
