[INDEX(inputs; .url)[]]
| "<testsuite name=\"crawl.py\" tests=\"\(length)\" failures=\"\(map(select(.kind)) | length)\">",
  (.[] | "<testcase name=\"\(.url | @html)\">\(if .kind then "<failure message=\"\(.error | @html)\"/>" else "" end)</testcase>"),
  "</testsuite>"
