"""Wire formats, pure: one module per API, the same names in each.

`tools(pool)` gives the definitions to send, `calls(response, definitions)` the calls that came back, `results(results)`
the answers to send, and `choice(…)` the value that limits what the model may call.
"""
