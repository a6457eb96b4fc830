# A DataFrame arrives as text, HTML and data, a plot as a PNG.
import base64
import json

from e2b_code_interpreter import Sandbox

TABLE = """
import pandas as pd
pd.DataFrame({"city": ["Brno", "Porto"], "sunny days": [167, 229]})"""

PLOT = """
import matplotlib.pyplot as plt
plt.plot([1, 4, 9, 16])
plt.show()"""

sandbox = Sandbox.create()
try:
    [table] = sandbox.run_code(TABLE).results
    print(table.text)
    print("HTML: ", str("<table" in table.html).lower())
    print("data: ", json.dumps(table.data, separators=(",", ":")))

    [plot] = sandbox.run_code(PLOT).results
    png = base64.b64decode(plot.png)
    print("plot: ", png[1:4].decode(), png[:8].hex())
finally:
    sandbox.kill()
