# A figure comes with the chart that it shows, as data to draw anew.
from e2b_code_interpreter import Sandbox

CODE = """
import matplotlib.pyplot as plt
plt.bar(["tea", "coffee"], [30, 42], label="cups")
plt.title("Sold")
plt.xlabel("what")
plt.ylabel("how many")
plt.show()"""

sandbox = Sandbox.create()
try:
    [result] = sandbox.run_code(CODE).results
    chart = result.chart
    print(f'{chart.type.value} chart "{chart.title}", {chart.x_label} by {chart.y_label}')
    for bar in chart.elements:
        print(f"{bar.group} of {bar.label}: {bar.value:g}")
finally:
    sandbox.kill()
