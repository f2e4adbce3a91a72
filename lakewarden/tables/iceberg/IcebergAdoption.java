// Adopts files that other tools wrote into a table, inside the driver's JVM: checks their footers, then appends
// them. Compiled by Janino together with IcebergBridge.java; the same rules apply.
package lakewarden;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Stream;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.MetricsConfig;
import org.apache.iceberg.PartitionData;
import org.apache.iceberg.PartitionField;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotAncestryValidator;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.mapping.MappingUtil;
import org.apache.iceberg.mapping.NameMapping;
import org.apache.iceberg.mapping.NameMappingParser;
import org.apache.iceberg.parquet.ParquetSchemaUtil;
import org.apache.iceberg.parquet.ParquetUtil;
import org.apache.iceberg.shaded.org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.iceberg.shaded.org.apache.parquet.hadoop.metadata.ParquetMetadata;
import org.apache.iceberg.shaded.org.apache.parquet.schema.MessageType;
import org.apache.iceberg.transforms.Transform;
import org.apache.iceberg.types.CheckCompatibility;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.TypeUtil;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.SerializableFunction;
import org.apache.iceberg.util.ThreadPools;

public final class IcebergAdoption {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** Why a file cannot be adopted, in words for the user. */
  public static final class Unfit extends Exception {
    Unfit(String reason) {
      super(reason);
    }
  }

  /** Files to be adopted into a table. */
  public static final class Candidates {
    final List paths;
    final Set names = new HashSet();
    // Manifests are immutable: one that was searched once need not be searched again.
    final Set looked = new HashSet();
    final List files = new ArrayList();
    boolean withoutIds = false;

    Candidates(List paths) {
      this.paths = paths;
      for (int i = 0; i < paths.size(); i++) {
        names.add(nameOf((String) paths.get(i)));
      }
    }
  }

  private static JsonNode at(JsonNode node, String key) {
    return node.get(key);
  }

  private static String nameOf(String path) {
    return path.substring(path.lastIndexOf('/') + 1);
  }

  public Candidates candidates(String pathsJson) throws Exception {
    return new Candidates(Arrays.asList((String[]) JSON.readValue(pathsJson, String[].class)));
  }

  // ---------------------------------------------------------------- is one of them live already?

  /**
   * Live data files of the current snapshot that have the same name as a candidate, in manifests that were not
   * searched before. Python decides which of them are the same file: a path has several spellings.
   */
  public String namesakes(final Table table, final Candidates candidates) throws Exception {
    ArrayNode found = JSON.createArrayNode();
    Snapshot head = table.currentSnapshot();
    List pending = new ArrayList();
    List manifests = head == null ? Collections.EMPTY_LIST : head.dataManifests(table.io());
    for (int i = 0; i < manifests.size(); i++) {
      final ManifestFile manifest = (ManifestFile) manifests.get(i);
      if (candidates.looked.add(manifest.path())) {
        pending.add(ThreadPools.getWorkerPool().submit(new Callable() {
          public Object call() throws Exception {
            return called(table, manifest, candidates.names);
          }
        }));
      }
    }
    for (int i = 0; i < pending.size(); i++) {
      List paths = (List) result((Future) pending.get(i));
      for (int j = 0; j < paths.size(); j++) {
        found.add((String) paths.get(j));
      }
    }
    return found.toString();
  }

  private static List called(Table table, ManifestFile manifest, Set names) throws Exception {
    List found = new ArrayList();
    CloseableIterable live = ManifestFiles.readPaths(manifest, table.io(), table.specs());
    try {
      CloseableIterator each = live.iterator();
      while (each.hasNext()) {
        String path = (String) each.next();
        if (names.contains(nameOf(path))) {
          found.add(path);
        }
      }
    } finally {
      live.close();
    }
    return found;
  }

  private static Object result(Future future) throws Exception {
    try {
      return future.get();
    } catch (ExecutionException e) {
      throw (Exception) e.getCause();
    }
  }

  // ---------------------------------------------------------------- checking them

  /**
   * Describes every candidate from its footer, or says why that is impossible: {"files", "rows", "bytes",
   * "partitions": [path, ...], "unfit": [{"path", "reason"}, ...]}. Changes nothing.
   */
  public String describe(final Table table, final Candidates candidates) throws Exception {
    final NameMapping mapping = mapping(table);
    List pending = new ArrayList();
    for (int i = 0; i < candidates.paths.size(); i++) {
      final String path = (String) candidates.paths.get(i);
      pending.add(ThreadPools.getWorkerPool().submit(new Callable() {
        public Object call() throws Exception {
          return dataFile(table, mapping, path, candidates);
        }
      }));
    }
    long rows = 0L;
    long bytes = 0L;
    Set partitions = new TreeSet();
    ObjectNode answer = JSON.createObjectNode();
    ArrayNode unfit = answer.putArray("unfit");
    for (int i = 0; i < pending.size(); i++) {
      try {
        DataFile file = (DataFile) result((Future) pending.get(i));
        candidates.files.add(file);
        rows += file.recordCount();
        bytes += file.fileSizeInBytes();
        partitions.add(table.spec().partitionToPath(file.partition()));
      } catch (Unfit e) {
        unfit.addObject().put("path", (String) candidates.paths.get(i)).put("reason", e.getMessage());
      }
    }
    answer.put("files", candidates.files.size()).put("rows", rows).put("bytes", bytes);
    ArrayNode paths = answer.putArray("partitions");
    Iterator each = partitions.iterator();
    while (each.hasNext()) {
      paths.add((String) each.next());
    }
    return answer.toString();
  }

  /** The name mapping by which columns of files without field ids are found. */
  private static NameMapping mapping(Table table) {
    Object set = table.properties().get(TableProperties.DEFAULT_NAME_MAPPING);
    return set == null ? MappingUtil.create(table.schema()) : NameMappingParser.fromJson((String) set);
  }

  private static DataFile dataFile(Table table, NameMapping mapping, String path, Candidates candidates)
      throws Exception {
    InputFile input = table.io().newInputFile(path);
    if (!input.exists()) {
      throw new Unfit("it does not exist");
    }
    ParquetMetadata footer = footer(input);
    MessageType written = footer.getFileMetaData().getSchema();
    boolean hasIds = ParquetSchemaUtil.hasIds(written);
    if (!hasIds) {
      candidates.withoutIds = true;
    }
    NameMapping byName = hasIds ? null : mapping;
    MessageType named = hasIds ? written : ParquetSchemaUtil.applyNameMapping(written, mapping);
    Map full = Collections.singletonMap(TableProperties.DEFAULT_WRITE_METRICS_MODE, "full");
    Metrics exact = ParquetUtil.footerMetrics(footer, Stream.empty(), MetricsConfig.fromProperties(full), byName);
    if (exact.recordCount().longValue() == 0L) {
      throw new Unfit("it has no rows");
    }
    checkSchema(table.schema(), ParquetSchemaUtil.convertAndPrune(named), exact);
    Metrics kept = ParquetUtil.footerMetrics(footer, Stream.empty(), MetricsConfig.forTable(table), byName);
    DataFiles.Builder builder = DataFiles.builder(table.spec());
    builder.withPath(path);
    builder.withFileSizeInBytes(input.getLength());
    builder.withFormat(FileFormat.PARQUET);
    builder.withMetrics(withoutFloatBounds(table.schema(), kept));
    builder.withSplitOffsets(ParquetUtil.getSplitOffsets(footer));
    if (!table.spec().isUnpartitioned()) {
      builder.withPartition(partition(table, exact));
    }
    return builder.build();
  }

  private static ParquetMetadata footer(InputFile input) throws Exception {
    // The method that passes an Iceberg file to Parquet's reader is not public.
    Class io = Class.forName("org.apache.iceberg.parquet.ParquetIO", true, ParquetUtil.class.getClassLoader());
    Method file = io.getDeclaredMethod("file", new Class[] {InputFile.class});
    file.setAccessible(true);
    ParquetFileReader reader = null;
    try {
      reader = ParquetFileReader.open(
          (org.apache.iceberg.shaded.org.apache.parquet.io.InputFile) file.invoke(null, new Object[] {input}));
      return reader.getFooter();
    } catch (Exception e) {
      throw new Unfit("it cannot be read as Parquet: " + firstLine(e));
    } finally {
      if (reader != null) {
        reader.close();
      }
    }
  }

  private static String firstLine(Throwable e) {
    String message = e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage();
    int end = message.indexOf('\n');
    return end < 0 ? message : message.substring(0, end);
  }

  private static void checkSchema(Schema table, Schema file, Metrics metrics) throws Unfit {
    List columns = table.columns();
    int known = 0;
    for (int i = 0; i < columns.size(); i++) {
      Types.NestedField column = (Types.NestedField) columns.get(i);
      boolean present = file.findField(column.fieldId()) != null;
      known += present ? 1 : 0;
      if (column.isRequired() && !present && column.initialDefault() == null) {
        throw new Unfit("it lacks the required column " + column.name());
      }
      Object nulls = metrics.nullValueCounts().get(Integer.valueOf(column.fieldId()));
      if (column.isRequired() && nulls != null && ((Long) nulls).longValue() > 0L) {
        throw new Unfit("the required column " + column.name() + " has " + nulls + " nulls");
      }
    }
    if (known == 0) {
      throw new Unfit("it has none of the table's columns");
    }
    List errors = CheckCompatibility.typeCompatibilityErrors(selected(table, file), file, false);
    if (!errors.isEmpty()) {
      throw new Unfit("its columns do not fit: " + errors.get(0));
    }
  }

  /** The table's columns that the file has. A missing column is null, or the file was refused earlier. */
  private static Schema selected(Schema table, Schema file) {
    List shared = new ArrayList();
    for (int i = 0; i < table.columns().size(); i++) {
      Types.NestedField column = (Types.NestedField) table.columns().get(i);
      if (file.findField(column.fieldId()) != null) {
        shared.add(column);
      }
    }
    return new Schema(shared);
  }

  /** Footers do not count NaNs, and a delete that trusts bounds would drop them: so floats state no bounds. */
  private static Metrics withoutFloatBounds(Schema schema, Metrics footer) {
    Map lower = footer.lowerBounds() == null ? new HashMap() : new HashMap(footer.lowerBounds());
    Map upper = footer.upperBounds() == null ? new HashMap() : new HashMap(footer.upperBounds());
    Iterator fields = TypeUtil.indexById(schema.asStruct()).entrySet().iterator();
    while (fields.hasNext()) {
      Map.Entry entry = (Map.Entry) fields.next();
      if (isFloat(((Types.NestedField) entry.getValue()).type())) {
        lower.remove(entry.getKey());
        upper.remove(entry.getKey());
      }
    }
    return new Metrics(footer.recordCount(), footer.columnSizes(), footer.valueCounts(), footer.nullValueCounts(),
        null, lower, upper);
  }

  private static boolean isFloat(Type type) {
    return type.typeId() == Type.TypeID.FLOAT || type.typeId() == Type.TypeID.DOUBLE;
  }

  // ---------------------------------------------------------------- their partition

  private static PartitionData partition(Table table, Metrics metrics) throws Unfit {
    PartitionSpec spec = table.spec();
    PartitionData data = new PartitionData(spec.partitionType());
    for (int i = 0; i < spec.fields().size(); i++) {
      PartitionField field = (PartitionField) spec.fields().get(i);
      data.set(i, partitionValue(table.schema().findField(field.sourceId()), field.transform(), metrics));
    }
    return data;
  }

  private static Object partitionValue(Types.NestedField source, Transform transform, Metrics metrics) throws Unfit {
    if (transform.isVoid()) {
      return null;
    }
    Integer id = Integer.valueOf(source.fieldId());
    Type type = source.type();
    SerializableFunction apply = transform.bind(type);
    Long values = (Long) metrics.valueCounts().get(id);
    if (values == null) {
      return source.initialDefault() == null ? null : apply.apply(source.initialDefault());
    }
    Long nulls = (Long) metrics.nullValueCounts().get(id);
    if (nulls == null) {
      throw new Unfit("its footer does not count the nulls of the partition column " + source.name());
    }
    if (nulls.equals(values)) {
      return null;
    }
    if (nulls.longValue() > 0L) {
      throw new Unfit("it spans partitions: column " + source.name() + " has both nulls and values");
    }
    return oneValue(source, transform, apply, bound(type, metrics.lowerBounds(), id), bound(type, metrics.upperBounds(), id));
  }

  private static Object oneValue(
      Types.NestedField source, Transform transform, SerializableFunction apply, Object lower, Object upper)
      throws Unfit {
    if (lower == null || upper == null || isFloat(source.type())) {
      throw new Unfit("its footer does not state the range of the partition column " + source.name());
    }
    Object first = apply.apply(lower);
    Object last = apply.apply(upper);
    // Equal bounds say something about the values between them only if the transform preserves order.
    boolean one = transform.preservesOrder() ? first.equals(last) : lower.equals(upper);
    if (!one) {
      Type shown = transform.preservesOrder() ? transform.getResultType(source.type()) : source.type();
      throw new Unfit("it spans partitions: column " + source.name() + " (" + transform + ") goes from "
          + human(transform, shown, first, lower) + " to " + human(transform, shown, last, upper));
    }
    return first;
  }

  private static String human(Transform transform, Type type, Object result, Object bound) {
    return transform.preservesOrder() ? transform.toHumanString(type, result) : String.valueOf(bound);
  }

  private static Object bound(Type type, Map bounds, Integer id) {
    Object found = bounds == null ? null : bounds.get(id);
    Object value = found == null ? null : Conversions.fromByteBuffer(type, (ByteBuffer) found);
    return value instanceof CharSequence ? value.toString() : value;
  }

  // ---------------------------------------------------------------- appending them

  /** One atomic `append` snapshot directly on the snapshot in which none of the files was live; -1 for no snapshot. */
  public void append(Table table, Candidates candidates, long parent, String summaryJson) throws Exception {
    if (candidates.withoutIds && table.properties().get(TableProperties.DEFAULT_NAME_MAPPING) == null) {
      // Without the mapping, readers would match the columns of such files by position. Setting only the
      // mapping changes nothing.
      String byName = NameMappingParser.toJson(MappingUtil.create(table.schema()));
      table.updateProperties().set(TableProperties.DEFAULT_NAME_MAPPING, byName).commit();
    }
    AppendFiles append = table.newAppend();
    for (int i = 0; i < candidates.files.size(); i++) {
      append.appendFile((DataFile) candidates.files.get(i));
    }
    append.validateWith(onTopOf(parent));
    JsonNode summary = JSON.readTree(summaryJson);
    Iterator keys = summary.fieldNames();
    while (keys.hasNext()) {
      String key = (String) keys.next();
      append.set(key, at(summary, key).asText());
    }
    append.commit();
  }

  private static SnapshotAncestryValidator onTopOf(final long parent) {
    return new SnapshotAncestryValidator() {
      public boolean validate(Iterable ancestry) {
        Iterator newest = ancestry.iterator();
        return newest.hasNext() ? ((Snapshot) newest.next()).snapshotId() == parent : parent == -1L;
      }

      public String errorMessage() {
        return "another commit came first";
      }
    };
  }
}
